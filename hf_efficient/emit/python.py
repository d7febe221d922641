"""Plan -> a few lines of Python for a script of yours, in the stack's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.emit.accelerator import Call, accelerator_keywords
from hf_efficient.emit.fields import argument_fields, complete
from hf_efficient.emit.loader import drop_what_needs_workers
from hf_efficient.plan import Plan
from hf_efficient.trick import FunctionCall

Door = Literal["trainer", "sft", "accelerate"]


def python_snippet(plan: Plan, door: Door = "trainer") -> str:
    """Return the lines that give a script of yours the plan's settings, each with the trick that sets it.

    `trainer` and `sft` build the arguments; `accelerate` builds the Accelerator and says what a loop does besides.
    """
    return _loop(plan) if door == "accelerate" else _arguments(plan, door)


def _arguments(plan: Plan, door: Literal["trainer", "sft"]) -> str:
    package, name = ("trl", "SFTConfig") if door == "sft" else ("transformers", "TrainingArguments")
    lines = [f"from {package} import {name}", "", f"args = {name}(", '    output_dir="out",']
    told = complete(plan)
    for key, value in argument_fields(plan, door).items():
        author = told.author("trainer", key) or told.author("sft", key) or "nothing in the plan"
        lines.append(f"    {key}={value!r},  # {author}")
    lines += [")", *_model(plan), *_adapter(plan), *(_data(plan) if door == "trainer" else [])]
    return "\n".join([*_variables(plan), *lines]) + "\n"


def _loop(plan: Plan) -> str:
    plan = drop_what_needs_workers(plan, "dataloader")
    keywords = accelerator_keywords(plan)
    classes = sorted(value.name for value in keywords.values() if isinstance(value, Call))
    lines = [
        "from accelerate import Accelerator",
        f"from accelerate.utils import {', '.join(classes)}",
        *_switches(plan),
    ]
    lines += ["", "accelerator = Accelerator(", *(f"    {key}={value!r}," for key, value in keywords.items()), ")"]
    lines += [*_model(plan), *_adapter(plan), *_data(plan)]
    lines += [f"loader_keywords = {plan['dataloader']!r}  # torch.utils.data.DataLoader(data, **loader_keywords)"]
    lines += ["", "", "def prepare_model(model):  # before accelerator.prepare", *_prepare(plan), "    return model"]
    lines += ["", "", "def make_optimizer(model, lr):", *_optimizer(plan)]
    lines += ["", "", "def clip(model):  # once per update, after the last backward", *_clip(plan)]
    return "\n".join(lines) + "\n"


def _variables(plan: Plan) -> list[str]:
    variables = [f"os.environ[{key!r}] = {str(value)!r}" for key, value in plan["env"].items()]
    return ["import os", "", *variables, ""] if variables else []


def _switches(plan: Plan) -> list[str]:
    switches = [f"torch.{setting.key} = {setting.value!r}  # {setting.by}" for setting in plan.settings_of("torch")]
    return _variables(plan) + (["import torch", "", *switches] if switches else [])


def _model(plan: Plan) -> list[str]:
    """Write the keywords of from_pretrained; a quantization's configuration is an object."""
    keywords = plan["model"]
    lines, quantization = [], keywords.pop("quantization_config", None)
    if quantization:
        lines = ["from transformers import BitsAndBytesConfig", ""]
    shown = [f"{key}={value!r}" for key, value in keywords.items()]
    shown += [f"quantization_config=BitsAndBytesConfig({_keywords(quantization)})"] if quantization else []
    return [
        *lines,
        f"model_keywords = dict({', '.join(shown)})  # AutoModel....from_pretrained(name, **model_keywords)",
    ]


def _adapter(plan: Plan) -> list[str]:
    if not plan["peft"]:
        return []
    return [
        "",
        "from peft import LoraConfig, get_peft_model",
        "",
        f"peft_config = LoraConfig({_keywords(plan['peft'])})  # SFTTrainer takes it; otherwise add_adapter(model)",
        "",
        "",
        "def add_adapter(model):  # before Trainer or accelerator.prepare; what is trained is in float32",
        "    model = get_peft_model(model, peft_config)",
        "    for parameter in model.parameters():",
        "        if parameter.requires_grad:",
        "            parameter.data = parameter.data.float()",
        "    return model",
        "",
    ]


def _data(plan: Plan) -> list[str]:
    if not plan["collator"]:
        return []
    spelled = ", ".join(repr(trick.name) for trick in plan.tricks if trick.collator)
    return [
        "",
        "",
        "def prepare_data(rows, tokenizer, model, max_length):  # rows of input_ids and labels",
        "    from hf_efficient import make_collator, make_plan, pack",
        "",
        f"    plan = make_plan({spelled})",
        "    return pack(plan, rows, max_length=max_length), make_collator(plan, tokenizer, model)",
        "",
    ]


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _prepare(plan: Plan) -> list[str]:
    lines = []
    for trick in plan.tricks:
        if isinstance(trick.prepare, FunctionCall):
            lines += [f"    {trick.prepare.imported}", ""]
        if trick.prepare is not None:
            lines.append(f"    {trick.prepare.source('model')}  # {trick.name}")
    return lines


def _optimizer(plan: Plan) -> list[str]:
    spelled = ", ".join(repr(trick.name) for trick in plan.tricks if trick.optimizer)
    remarks = [f"    # {trick.remarks['optimizer']}" for trick in plan.tricks if "optimizer" in trick.remarks]
    return [
        *remarks,
        "    from hf_efficient import make_optimizer, make_plan  # Trainer's optimizer of the same name",
        "",
        f"    return make_optimizer(make_plan({spelled}), model, lr=lr)",
    ]


def _clip(plan: Plan) -> list[str]:
    limit = plan["loop"].get("max_grad_norm")
    return [f"    return accelerator.clip_grad_norm_(model.parameters(), {limit!r})" if limit else "    return None"]

"""Plan -> a few lines of Python for a script of yours, in the stack's own classes."""

from __future__ import annotations

from typing import Literal

from hf_efficient.emit.accelerator import Call, accelerator_keywords
from hf_efficient.emit.fields import argument_fields, complete
from hf_efficient.emit.fsdp import preparations
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
    told = complete(plan)
    lines = [f"from {package} import {name}", *_variables(told), "", f"args = {name}(", '    output_dir="out",']
    for key, value in argument_fields(plan, door).items():
        author = told.author("trainer", key) or told.author("sft", key) or "nothing in the plan"
        lines.append(f"    {key}={value!r},  # {author}")
    lines += [")"]
    if plan["model"]:
        lines += [f"model_keywords = {plan['model']!r}  # AutoModelForCausalLM.from_pretrained(name, **model_keywords)"]
    return "\n".join(lines) + "\n"


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
    lines += [f"model_keywords = {plan['model']!r}  # AutoModel....from_pretrained(name, **model_keywords)"]
    lines += [f"loader_keywords = {plan['dataloader']!r}  # torch.utils.data.DataLoader(data, **loader_keywords)"]
    lines += ["", "", "def prepare_model(model):  # before accelerator.prepare", *_prepare(plan), "    return model"]
    lines += ["", "", "def make_optimizer(model, lr):", *_optimizer(plan)]
    lines += ["", "", "def clip(model):  # once per update, after the last backward", *_clip(plan)]
    return "\n".join(lines) + "\n"


def _switches(plan: Plan) -> list[str]:
    switches = [f"torch.{s.key} = {s.value!r}  # {s.by}" for s in plan.settings if s.target == "torch"]
    return _variables(plan) + (["import torch", "", *switches] if switches else [])


def _variables(plan: Plan) -> list[str]:
    variables = [f"os.environ[{key!r}] = {str(value)!r}" for key, value in plan["env"].items()]
    return ["import os", "", *variables] if variables else []


def _prepare(plan: Plan) -> list[str]:
    lines = []
    for name, call in preparations(plan).items():
        if isinstance(call, FunctionCall):
            lines += [f"    {call.imported}", ""]
        lines.append(f"    {call.source('model')}  # {name}")
    return lines


def _optimizer(plan: Plan) -> list[str]:
    spelled = ", ".join(repr(trick.name) for trick in plan.tricks if trick.optimizer)
    return [
        "    from hf_efficient import make_optimizer, make_plan  # Trainer's optimizer of the same name",
        "",
        f"    return make_optimizer(make_plan({spelled}), model, lr=lr)",
    ]


def _clip(plan: Plan) -> list[str]:
    limit = plan["loop"].get("max_grad_norm")
    return [f"    return accelerator.clip_grad_norm_(model.parameters(), {limit!r})" if limit else "    return None"]

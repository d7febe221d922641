"""Plan -> a few lines of Python for a script of yours, in the stack's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.emit.deepspeed import loop_config
from hf_efficient.emit.fields import argument_fields
from hf_efficient.emit.loader import drop_what_needs_workers
from hf_efficient.plan import Plan
from hf_efficient.trick import MethodCall

Door = Literal["trainer", "sft", "accelerate"]


def python_snippet(plan: Plan, door: Door = "trainer") -> str:
    """Return the lines that give a script of yours the plan's settings, each with the trick that sets it.

    `trainer` and `sft` build the arguments; `accelerate` builds the Accelerator and says what a loop does besides.
    """
    return _loop(plan) if door == "accelerate" else _arguments(plan, door)


def _arguments(plan: Plan, door: Literal["trainer", "sft"]) -> str:
    package, name = ("trl", "SFTConfig") if door == "sft" else ("transformers", "TrainingArguments")
    lines = [f"from {package} import {name}", "", f"args = {name}(", '    output_dir="out",']
    lines += [f"    {key}={value!r},{_by(plan, key)}" for key, value in argument_fields(plan, door).items()]
    lines += [")"]
    if plan["model"]:
        lines += [f"model_keywords = {plan['model']!r}  # AutoModelForCausalLM.from_pretrained(name, **model_keywords)"]
    return "\n".join(lines) + "\n"


def _by(plan: Plan, key: str) -> str:
    author = plan.author("trainer", key) or plan.author("sft", key)
    author = author or (plan.author("launch", "distributed_type") if key == "deepspeed" else "nothing in the plan")
    return f"  # {author}"


def _loop(plan: Plan) -> str:
    plan = drop_what_needs_workers(plan, "dataloader")
    keywords, imports, before = dict(plan["accelerator"]), ["from accelerate import Accelerator"], _switches(plan)
    if "dynamo_plugin" in keywords:
        imports.append("from accelerate.utils import TorchDynamoPlugin")
        keywords["dynamo_plugin"] = _Call("TorchDynamoPlugin", keywords["dynamo_plugin"])
    if plan.engine == "DEEPSPEED":
        imports.append("from accelerate.utils import DeepSpeedPlugin")
        keywords["deepspeed_plugin"] = _Call("DeepSpeedPlugin", {"hf_ds_config": loop_config(plan)})
    arguments = "".join(f"\n    {key}={value!r}," for key, value in keywords.items())
    lines = [*imports, *before, "", f"accelerator = Accelerator({arguments}{chr(10) if arguments else ''})"]
    lines += [f"model_keywords = {plan['model']!r}  # AutoModel....from_pretrained(name, **model_keywords)"]
    lines += [f"loader_keywords = {plan['dataloader']!r}  # torch.utils.data.DataLoader(data, **loader_keywords)"]
    lines += ["", "", "def prepare_model(model):  # before accelerator.prepare", *_prepare(plan), "    return model"]
    lines += ["", "", "def make_optimizer(model, lr):", *_optimizer(plan)]
    lines += ["", "", "def clip(model):  # once per update, after the last backward", *_clip(plan)]
    return "\n".join(lines) + "\n"


class _Call:
    """A call written out by its repr."""

    def __init__(self, name: str, keywords: Mapping[str, Any]) -> None:
        self.text = f"{name}({', '.join(f'{key}={value!r}' for key, value in keywords.items())})"

    def __repr__(self) -> str:
        return self.text


def _switches(plan: Plan) -> list[str]:
    switches = [f"torch.{s.key} = {s.value!r}  # {s.by}" for s in plan.settings if s.target == "torch"]
    variables = [f"os.environ[{key!r}] = {str(value)!r}" for key, value in plan["env"].items()]
    return (["import os", "", *variables] if variables else []) + (["import torch", "", *switches] if switches else [])


def _prepare(plan: Plan) -> list[str]:
    """Write the calls on the model; a hook that is code and no call is run from its trick."""
    lines, hooks = [], [trick for trick in plan.tricks if trick.prepare is not None]
    for trick in hooks:
        if isinstance(trick.prepare, MethodCall):
            lines.append(f"    {trick.prepare.source('model')}  # {trick.name}")
        else:
            lines.append("    from hf_efficient import make_plan, prepare_model")
            lines.append(f"    prepare_model(make_plan({trick.name!r}), model)")
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

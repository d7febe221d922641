"""Plan -> a few lines of Python for a script of yours, in the stack's own classes."""

from __future__ import annotations

import re
from typing import Literal

from hf_efficient.emit.accelerator import Call, accelerator_keywords
from hf_efficient.emit.fields import argument_fields, complete, sft_complete
from hf_efficient.emit.fsdp import preparations
from hf_efficient.emit.loader import drop_what_needs_workers
from hf_efficient.emit.python_parts import (
    adapter_lines,
    classes_of_model,
    data_lines,
    loader_lines,
    model_lines,
    sft_adapter_lines,
)
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
    told = sft_complete(complete(plan)) if door == "sft" else complete(plan)
    model = model_lines(plan) if door == "trainer" else []
    lines = [
        *_variables(told),
        *classes_of_model(plan, door),
        f"from {package} import {name}",
        "",
        f"args = {name}(",
        '    output_dir="out",',
    ]
    for key, value in argument_fields(plan, door).items():
        author = told.author("sft", key) if door == "sft" and key in told["sft"] else told.author("trainer", key)
        lines.append(f"    {key}={value!r},  # {author or 'nothing in the plan'}")
    parts = [*model, *adapter_lines(plan), *data_lines(plan)] if door == "trainer" else sft_adapter_lines(plan)
    return _text([*lines, ")", *parts])


def _loop(plan: Plan) -> str:
    plan = drop_what_needs_workers(plan, "dataloader")
    keywords = accelerator_keywords(plan)
    classes = sorted(value.name for value in keywords.values() if isinstance(value, Call))
    lines = [
        "from accelerate import Accelerator",
        f"from accelerate.utils import {', '.join(classes)}",
        *classes_of_model(plan, "accelerate"),
        *_switches(plan),
    ]
    lines += ["", "accelerator = Accelerator(", *(f"    {key}={value!r}," for key, value in keywords.items()), ")"]
    lines += [*model_lines(plan), *adapter_lines(plan), *data_lines(plan), *loader_lines(plan), *_options(plan)]
    cache = "    model.config.use_cache = False  # as Trainer does"
    lines += [
        "",
        "",
        "def prepare_model(model):  # before accelerator.prepare",
        cache,
        *_prepare(plan),
        "    return model",
    ]
    lines += ["", "", "def make_optimizer(model, lr):", *_optimizer(plan)]
    lines += ["", "", "def clip(model):  # once per update, after the last backward", *_clip(plan)]
    return _text(lines)


def _text(lines: list[str]) -> str:
    """Join lines, with two empty ones in a row at most."""
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip() + "\n"


def _options(plan: Plan) -> list[str]:
    return [
        f"{setting.key} = {setting.value!r}  # {setting.by}"
        for setting in plan.settings_of("loop")
        if setting.key not in ("max_grad_norm", "effective_batch")
    ]


def _switches(plan: Plan) -> list[str]:
    switches = [f"torch.{setting.key} = {setting.value!r}  # {setting.by}" for setting in plan.settings_of("torch")]
    return _variables(plan) + (["import torch", "", *switches] if switches else [])


def _variables(plan: Plan) -> list[str]:
    variables = [
        f"os.environ[{setting.key!r}] = {str(setting.value)!r}  # {setting.by}" for setting in plan.settings_of("env")
    ]
    return ["import os", "", *variables, ""] if variables else []


def _prepare(plan: Plan) -> list[str]:
    lines = []
    for name, call in preparations(plan).items():
        if isinstance(call, FunctionCall):
            lines += [f"    {call.imported}", ""]
        lines.append(f"    {call.source('model')}  # {name}")
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

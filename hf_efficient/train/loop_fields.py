"""The fields of TrainingArguments that a hand-written loop honours, and where each of them goes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hf_efficient.plan import Plan
from hf_efficient.renames import explain
from hf_efficient.wording import listed, nearest

OPTIONS = (
    "learning_rate",
    "weight_decay",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_train_epochs",
    "per_device_eval_batch_size",
    "logging_steps",
    "seed",
    "output_dir",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "resume_from_checkpoint",
)
"""Fields that the loop itself reads, under their own names in the target `loop`."""

HONOURED: dict[str, tuple[str, str]] = {
    "per_device_train_batch_size": ("dataloader", "batch_size"),
    "dataloader_num_workers": ("dataloader", "num_workers"),
    "dataloader_prefetch_factor": ("dataloader", "prefetch_factor"),
    "dataloader_pin_memory": ("dataloader", "pin_memory"),
    "dataloader_persistent_workers": ("dataloader", "persistent_workers"),
    "gradient_accumulation_steps": ("accelerator", "gradient_accumulation_steps"),
    "max_grad_norm": ("loop", "max_grad_norm"),
    **{name: ("loop", name) for name in OPTIONS},
}
"""Field of TrainingArguments -> target and key of the loop."""


def loop_plan(plan: Plan, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Plan:
    """Return `plan` with the fields that were given (by you) and the recipe's defaults, for a hand-written loop.

    What nobody says has the value that TrainingArguments gives it. Raises ValueError naming every field that was
    given and that the loop does not honour.
    """
    from dataclasses import fields

    from transformers import TrainingArguments

    # The deepspeed launcher adds local_rank, which the environment says as well.
    given = {name: value for name, value in given.items() if name != "local_rank"}
    _refuse(given)
    if given.get("save_strategy") == "best":
        raise ValueError(
            "--save_strategy best saves after evaluations, and this loop evaluates before and after its run: "
            "take steps, epoch or no."
        )
    for name in ("save_steps", "logging_steps"):
        if given.get(name, 0) > 1 and given[name] != int(given[name]):
            raise ValueError(f"--{name} must be an integer if bigger than 1, and is {given[name]}: round it.")
    for name, value in given.items():
        target, key = HONOURED[name]
        value = os.path.expanduser(value) if name == "output_dir" else value
        plan = plan.override(target, {key: value}, by="you")
    for name, value in defaults.items():
        target, key = HONOURED[name]
        plan = plan.assume(target, {key: value}, by="recipe")
    stock = {field.name: field.default for field in fields(TrainingArguments)}
    batch = {"batch_size": stock["per_device_train_batch_size"]}
    plan = plan.assume("dataloader", batch, by="TrainingArguments' default")
    return plan.assume("loop", {name: stock[name] for name in OPTIONS}, by="TrainingArguments' default")


def run_length(options: Mapping[str, Any], batches: int, steps: int) -> tuple[int, int]:
    """Return how many updates a run makes and how many of them warm up, by Trainer's rules.

    `max_steps`, else `num_train_epochs` over `batches` in windows of `steps`; `warmup_steps` below 1 is a share.
    """
    epochs = options["num_train_epochs"] * math.ceil(batches / steps)
    updates = options["max_steps"] if options["max_steps"] > 0 else math.ceil(epochs)
    warmup = options["warmup_steps"]
    return updates, int(warmup) if warmup >= 1 else math.ceil(updates * warmup)


def save_is_due(options: SimpleNamespace, done: int, *, updates: int, epoch_ended: bool) -> bool:
    """Say whether a checkpoint is to be saved after `done` of `updates`, by Trainer's rules (DefaultFlowCallback).

    With `steps` and `epoch` the last update is saved too.
    """
    last = done >= updates
    if options.save_strategy == "epoch":
        return last or epoch_ended
    return bool(options.save_strategy == "steps" and (last or is_due(options.save_steps, done, updates=updates)))


def is_due(steps: float, done: int, *, updates: int) -> bool:
    """Say whether what happens every `steps` updates is due; below 1 they are a share of `updates`, 0 is never."""
    every = steps if steps >= 1 else math.ceil(updates * steps)
    return every > 0 and done % every == 0


def _refuse(given: Mapping[str, Any]) -> None:
    wrong = [name for name in given if name not in HONOURED]
    if not wrong:
        return
    hints = [explain(name) or _hint(name) for name in wrong]
    raise ValueError(
        f"This loop does not honour {listed(f'--{name}' for name in wrong)}. {' '.join(h for h in hints if h)} "
        f"It takes {listed(f'--{name}' for name in sorted(HONOURED))}; recipes/causal_lm.py takes them all."
    )


def _hint(name: str) -> str:
    from hf_efficient.tricks import defaults

    tricks = [trick.name for trick in defaults() if name in trick.trainer]
    if tricks:
        return f"For --{name} write --plan {listed(tricks, 'or')}, or leave the trick out with --without."
    close = nearest(name, HONOURED)
    return f"Did you mean --{close}?" if close and close != name else ""

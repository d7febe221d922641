"""What is asked side by side: plans written with `/` between them, each with every batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from hf_efficient.machine import Machine
from hf_efficient.memory.results import Batch
from hf_efficient.plan import Plan

EVAL_SIZE = 8
"""TrainingArguments' own per_device_eval_batch_size."""


def plans(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names of each plan: `lean / lean zero(3)` are two. Raises ValueError where one has no names."""
    parts = [list(group) for is_slash, group in groupby(names, lambda name: name == "/") if not is_slash]
    if len(parts) != names.count("/") + 1:
        raise ValueError("A plan has no names, because nothing stands on one side of a /: write it as `lean / fast`.")
    yield from parts


def batches(plan: Plan, sizes: str | None, *, evaluate: bool = False, **others: Any) -> list[Batch]:
    """Return a Batch per size of the comma list `sizes`; without it, of the plan's own batch_size.

    With `evaluate`, or where `others` say something about evaluation, the evaluation batch is theirs, else the plan's,
    else that of TrainingArguments. Raises ValueError in one sentence for a size that is no whole number of at least 1.
    """
    if evaluate or others.get("eval_rows"):
        others["eval_size"] = others.get("eval_size") or plan["trainer"].get("per_device_eval_batch_size", EVAL_SIZE)
    return [Batch(size=size, **others) for size in _sizes(sizes, plan["trainer"].get("per_device_train_batch_size"))]


def remarks(plans: Iterable[Plan], machine: Machine | None) -> list[str]:
    """Return what the plans replaced and noted, and what `machine` lacks for them; each sentence once."""
    said = [sentence for plan in plans for sentence in (*plan.replaced, *plan.notes, *_unmet(plan, machine))]
    return list(dict.fromkeys(said))


def listed_values(options: Iterable[str]) -> list[str]:
    """Return the values of an option that may be repeated and may hold comma lists."""
    return [value.strip() for option in options for value in option.split(",") if value.strip()]


def _unmet(plan: Plan, machine: Machine | None) -> list[str]:
    return [f"unmet: {lack}" for lack in plan.unmet(machine)] if machine else []


def _sizes(text: str | None, own: int | None) -> list[int]:
    if text is None:
        if own is None:
            raise ValueError("The batch is missing, because no trick of the plan sets it: add --batch-size, such as 8.")
        return [own]
    values = text.split(",")
    if not all(value.strip().isdecimal() and int(value) > 0 for value in values):
        raise ValueError(
            f"--batch-size {text} is no batch, because a GPU works on whole rows and at least on one: "
            "write a number, such as 8, or a comma list, such as 1,2,4."
        )
    return list(dict.fromkeys(int(value) for value in values))

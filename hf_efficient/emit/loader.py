"""Pairs of data loader settings that the stack refuses, whoever set them."""

from __future__ import annotations

from typing import Literal

from hf_efficient.plan import Plan

PREFIX = {"trainer": "dataloader_", "dataloader": ""}


def drop_what_needs_workers(plan: Plan, target: Literal["trainer", "dataloader"]) -> Plan:
    """Return `plan` without prefetching and persistent workers where there are 0 workers, and say so.

    torch and TrainingArguments refuse both pairs; a value of yours that makes one stays and is refused there.
    """
    prefix = PREFIX[target]
    if plan[target].get(f"{prefix}num_workers", 0) != 0:
        return plan
    for key in (f"{prefix}prefetch_factor", f"{prefix}persistent_workers"):
        author = plan.author(target, key)
        if author and author != "you":
            plan = plan.drop(target, [key]).note(f"{key} of {author} is left out: there are 0 workers.")
    return plan


def unpin(plan: Plan, target: Literal["trainer", "dataloader"], *, by: str) -> Plan:
    """Return `plan` without pinned memory, for a run without an accelerator: there is no GPU to copy to.

    TrainingArguments would do so without a word, torch's DataLoader with a warning. A value of yours stays.
    """
    key = f"{PREFIX[target]}pin_memory"
    if plan.author(target, key) in ("", "you"):
        return plan
    return plan.override(target, {key: False}, by=by)

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

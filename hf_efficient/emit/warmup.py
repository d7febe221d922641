"""Optimizers that warm up by themselves."""

from __future__ import annotations

from typing import Any

COUNTS_UPDATES = ("schedule_free_adamw", "schedule_free_sgd")


def refuse_a_share(optimizer: Any, warmup_steps: float | None) -> None:
    """Raise ValueError for a share of the updates as the warm-up of an optimizer that counts whole updates.

    transformers hands it on as it is, and schedulefree divides by it: 0.05 would start at 20 times the learning rate.
    """
    name = getattr(optimizer, "value", optimizer)
    if name in COUNTS_UPDATES and warmup_steps and 0 < warmup_steps < 1:
        raise ValueError(
            f"warmup_steps={warmup_steps:g} is a share of the updates, and {name} warms up by itself in whole updates: "
            f"it would start at {1 / warmup_steps:g} times your learning rate. Give a number of updates instead."
        )

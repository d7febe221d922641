"""One update out of several micro-batches equals one out of the whole batch, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, Run, load, train

from hf_efficient import make_plan
from hf_efficient.effective_batch import effective_batch

VARIANTS = ["gradient_accumulation(4)"]


@pytest.fixture
def uneven(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with 1 to 15 labels each, so that a mean of means is not the mean."""
    where = torch.arange(16)
    return [row | {"labels": row["labels"].where(where <= number % 15 + 1, -100)} for number, row in enumerate(rows)]


def accumulated(door: str, per_device: int, steps: int, tiny: Path, rows: list[Any], updates: int = 1) -> Run:
    """Train with batches of `per_device` x `steps`, unclipped."""
    plan = make_plan(f"batch_size({per_device})", f"gradient_accumulation({steps})", "gradient_clipping(0)")
    assert effective_batch(plan, 1, door) == per_device * steps
    return train(door, plan, load(tiny), rows, updates=updates)


@DOORS
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_one_update_per_window(door: str, steps: int, tiny: Path, rows: list[Any]) -> None:
    """Updates are micro-batches / steps, and the gradient is set to zero only after an update."""
    run = accumulated(door, 4, steps, tiny, rows, updates=2)
    assert (run.batches, len(run.gradients)) == ([4] * 2 * steps, 2)


@DOORS
def test_eight_times_eight_is_sixty_four(door: str, tiny: Path, uneven: list[Any]) -> None:
    """8 x 8 unequal rows give the gradient of one batch of 64, within 1e-5 in relative L2."""
    small, whole = (accumulated(door, size, 64 // size, tiny, uneven).gradients[0] for size in (8, 64))
    assert whole.norm() > 0.1
    assert (small - whole).norm() < 1e-5 * whole.norm()


def test_both_doors_accumulate_alike(tiny: Path, uneven: list[Any]) -> None:
    """Both doors have the same gradient after 8 x 8 unequal rows, within 1e-5 in relative L2."""
    one, other = (accumulated(door, 8, 8, tiny, uneven).gradients[0] for door in ("trainer", "loop"))
    assert (one - other).norm() < 1e-5 * one.norm()

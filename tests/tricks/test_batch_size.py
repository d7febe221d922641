"""The batch is what the model sees, the effective batch is exact, and advice is advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doors import DOORS, REFUSE, load, train

from hf_efficient import Machine, make_plan
from hf_efficient.effective_batch import effective_batch
from hf_efficient.plan import Conflict

VARIANTS = ["batch_size(4, effective=64)"]

ADVICE = {
    "T4": "T4 likes batch x length in multiples of 8 (8 if rows have length 1",
    "A100-80GB": "A100-80GB likes batch x length in multiples of 64 (64 if rows have length 1",
}


@DOORS
@pytest.mark.parametrize("per_device", [6, 4])
def test_model_sees_that_many_rows(door: str, per_device: int, tiny: Path, rows: list[Any]) -> None:
    """Each forward pass sees per_device rows, however unlike a power of two."""
    assert train(door, make_plan(f"batch_size({per_device})"), load(tiny), rows).batches == [per_device] * 2


@DOORS
def test_accumulation_follows_from_the_effective_batch(door: str, tiny: Path, rows: list[Any]) -> None:
    """batch_size(8, effective=32) makes one update out of four forward passes of 8 rows."""
    run = train(door, make_plan("batch_size(8, effective=32)"), load(tiny), rows, updates=2)
    assert run.batches == [8] * 8
    assert len(run.gradients) == 2


@DOORS
def test_inexact_effective_batch_is_refused(door: str) -> None:
    """An effective batch that cannot be exact is refused with the nearest that can, a contradiction as a conflict."""
    with pytest.raises(ValueError, match=r"64 / 6 is not whole. Take per_device 4 or 8 or effective 60 or 66\."):
        REFUSE[door](make_plan("batch_size(6, effective=64)"))
    with pytest.raises(Conflict, match="takes 8 accumulation steps on 1 process, but 4 is set by"):
        REFUSE[door](make_plan("batch_size(8, effective=64)", "gradient_accumulation(4)"))


@DOORS
@pytest.mark.parametrize(("processes", "per_device", "steps"), [(1, 8, 8), (2, 8, 4), (8, 4, 2)])
def test_effective_batch_is_exact_over_processes(door: str, processes: int, per_device: int, steps: int) -> None:
    """64 samples per update stay 64 over 1, 2 and 8 processes, whatever fits on one device."""
    plan = make_plan(f"batch_size({per_device}, effective=64)")
    assert effective_batch(plan, processes, door) == per_device * steps * processes == 64


@pytest.mark.parametrize(("gpu", "words"), ADVICE.items())
def test_advice_is_computed_for_the_card(gpu: str, words: str) -> None:
    """The advice for 6 rows names the powers of two around it and the card's multiple, and leaves the plan at 6."""
    plan = make_plan("batch_size(6)")
    [advice] = plan.advice(Machine.named(gpu))
    assert "the powers of two are 4, 8" in advice
    assert words in advice
    assert plan["trainer"]["per_device_train_batch_size"] == plan["dataloader"]["batch_size"] == 6


def test_nothing_is_advised_where_nothing_is_to_gain() -> None:
    """A batch of 64 gets no advice on an A100, one of 8 none on a T4."""
    assert make_plan("batch_size(64)").advice(Machine.named("A100-80GB")) == []
    assert make_plan("batch_size(8)").advice(Machine.named("T4")) == []

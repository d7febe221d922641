"""What fits on a card: with room, only just, or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import estimates
import pytest

from hf_efficient.machine import Machine
from hf_efficient.memory.fit import SPARE, beside, on_card
from hf_efficient.memory.results import Estimate

MADE = Machine(gpu="made", accelerator="cuda", capability=(8, 0), memory_gib=24.0)


def _estimate(held: float, *, replay_fits: bool) -> Estimate:
    """Return one whose allocator would like to hold so many GiB, and can do with what the replay says."""
    replayed: Any = SimpleNamespace(on=lambda capacity: SimpleNamespace(fits=replay_fits, retries=2))
    return estimates.estimate(reserved_gib=held, reserve=replayed)


@pytest.mark.parametrize(
    ("over", "replay_fits", "fits", "tight"),
    [(-1.0, True, True, False), (1.0, True, True, True), (1.0, False, False, False)],
)
def test_what_the_allocator_gives_back_makes_it_fit_only_just(
    over: float, replay_fits: bool, fits: bool, tight: bool
) -> None:
    """With less than it would hold, the allocator asks again: that fits where the replay does, and is said."""
    usable = (1 - SPARE) * MADE.memory_gib - sum(beside(MADE, 1).values())
    found = on_card(_estimate(usable + over, replay_fits=replay_fits), MADE)
    assert (found.fits, found.tight) == (fits, tight)
    assert any("Near the limit" in sentence and "2 times" in sentence for sentence in found.assumptions) == tight
    assert found.taken_gib == pytest.approx(MADE.memory_gib - (found.margin_gib or 0.0))

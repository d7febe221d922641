"""Loading and steps, one after the other, through the model of torch's caching allocator."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hf_efficient.memory.blocks import MIB
from hf_efficient.memory.replay import Change, Replayed, Round, replay


def _changes(*changes: tuple[str, int]) -> list[Change]:
    return [(key, size * MIB, 0) for key, size in changes]


LOADING = _changes(("weights", 100))
PASSES = _changes(("activations", 50), ("gradients", 100), ("activations", -50))
UPDATE = _changes(("passing", 30), ("passing", -30))
STEP = Round(PASSES, UPDATE, state=[100 * MIB, 100 * MIB])
SWAPPED = [("a", 30 * MIB, 0), ("a", -30 * MIB, 0), ("b", 30 * MIB, 1), ("b", -30 * MIB, 1)]


def _mib(replayed: Replayed) -> tuple[float, float]:
    return replayed.reserved / MIB, replayed.allocated / MIB


def test_the_first_step_makes_the_state_and_the_second_shows_the_peak() -> None:
    """100 of weights, 100 of gradients, 200 of state, and the 50 of activations that the first step had alone."""
    replayed = replay(LOADING, STEP)
    assert _mib(replayed) == (450, 450)
    assert (replayed.steps, replayed.retries, replayed.fits) == (3, 0, True)


def test_expandable_segments_reserve_whole_pages() -> None:
    """450 MiB are 23 pages of 20 MiB."""
    assert _mib(replay(LOADING, STEP, expandable=True)) == (460, 450)


def test_what_loading_takes_in_passing_is_there_for_the_steps() -> None:
    """A buffer of 60 MiB that loading freed holds the activations."""
    loading = [*LOADING, *_changes(("buffer", 60), ("buffer", -60))]
    assert _mib(replay(loading, STEP)) == (460, 450)


def test_a_step_that_fits_may_not_fit_twice() -> None:
    """On 449 MiB the first step goes through with a retry, and the second finds no room for its gradients."""
    replayed = replay(LOADING, STEP, capacity=449 * MIB)
    assert not replayed.fits
    assert replayed.full_at is not None
    assert replayed.full_at[:4] == (2, "passes", 1, 51 * MIB)
    assert "51.00 MiB" not in replayed.full_at.reason
    assert "100.00 MiB more" in replayed.full_at.reason
    assert (replayed.steps, replayed.retries, replayed.retries_in_all) == (2, 1, 2)


@pytest.mark.parametrize(("capacity", "place"), [
    (99, (0, "loading", 0)), (149, (1, "passes", 0)), (349, (1, "state", 1)), (420, (1, "update", 0)),
])  # fmt: skip
def test_it_says_where_the_card_was_full(capacity: int, place: tuple[int, str, int]) -> None:
    """Step, part and number there; step 0 is loading."""
    update = _changes(("passing", 60), ("passing", -60))
    full = replay(LOADING, STEP._replace(update=update), capacity=capacity * MIB).full_at
    assert full is not None
    assert full[:3] == place


def test_retries_are_those_of_a_further_step() -> None:
    """Two streams that take 30 MiB in turn on 50 swap it twice a step, in the first step once."""
    replayed = replay([], Round(SWAPPED, []), capacity=50 * MIB)
    assert (replayed.retries, replayed.retries_in_all, replayed.reserved) == (2, 5, 30 * MIB)


def test_further_micro_batches_come_before_the_update() -> None:
    """Three times 70 MiB of a further micro-batch beside the gradients, and nothing of it in the update."""
    later = _changes(("more", 70), ("more", -70))
    replayed = replay(LOADING, STEP._replace(later=later, micro_batches=4))
    assert _mib(replayed) == (100 + 50 + 100 + 70 + 200, 100 + 100 + 200 + 70)


def test_clipping_comes_before_the_state() -> None:
    """On 299 MiB it is clipping that does not fit beside weights and gradients, before the state is asked for."""
    clipping = _changes(("norms", 100), ("norms", -100))
    full = replay(LOADING, STEP._replace(clipping=clipping), capacity=299 * MIB).full_at
    assert full is not None
    assert full[:4] == (1, "clipping", 0, MIB)


def test_a_further_micro_batch_leaves_nothing() -> None:
    """Gradients that each micro-batch would leave anew are a mistake of the caller."""
    with pytest.raises(AssertionError, match="leave storages behind"):
        replay([], Round([], [], later=_changes(("gradients", 100)), micro_batches=2))


def test_it_ends_when_the_reserved_bytes_stay() -> None:
    """The second step takes nothing more than the first: two are enough, and as many as are asked for are taken."""
    assert [replay(LOADING, STEP, steps=steps).steps for steps in (1, 3, 8)] == [2, 3, 8]


def test_empty_storages_take_nothing() -> None:
    """Zero bytes are no block."""
    assert _mib(replay(_changes(("nothing", 0)), Round([], []))) == (0, 0)


def test_a_replay_needs_no_torch() -> None:
    """The model imports nothing that has to be installed."""
    code = "import sys, hf_efficient.memory.replay; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"

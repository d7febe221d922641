"""What a card reserves while a model is loaded and steps are taken, until nothing grows any more."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hf_efficient.memory.allocator import CachingAllocator, CardFullError

Change = tuple[Hashable, int, int]
"""A storage comes into being: its key, bytes, stream; with negative bytes it goes. Zero bytes take no memory."""
LONGEST = 6
"""Steps after which a replay ends even where the reserved bytes still grow."""


class Round(NamedTuple):
    """What every step allocates and frees, in order; a key names one storage of the step at a time.

    What is left at the end, the gradients above all, is freed then, as `zero_grad` does.
    """

    passes: Sequence[Change]
    """Forward and backward of the first micro-batch, whose gradients stay."""
    update: Sequence[Change]
    """The optimizer's update."""
    clipping: Sequence[Change] = ()
    state: Sequence[int] = ()
    """Bytes of each storage of optimizer state; they come with the first update and stay."""
    later: Sequence[Change] = ()
    """Forward and backward of each further micro-batch; it adds to gradients that are there and leaves nothing."""
    micro_batches: int = 1


class Full(NamedTuple):
    """Where the card was full."""

    step: int
    """From 1 on; 0 while the model was loaded."""
    part: str
    """`loading`, or a field of Round."""
    at: int
    """Which change of that part did not fit."""
    missing: int
    """Bytes that the card has too few for that one change; what comes after may need more."""
    reason: str


class Replayed(NamedTuple):
    """What a replay took."""

    reserved: int
    """Largest number of bytes asked from the card, as `torch.cuda.max_memory_reserved` shows."""
    allocated: int
    """Largest number of bytes in use, as `torch.cuda.max_memory_allocated` shows."""
    retries: int
    """How often the last step had to give back cached segments: each one waits for the card, in every further step."""
    retries_in_all: int
    steps: int
    """How many were begun."""
    full_at: Full | None = None

    @property
    def fits(self) -> bool:
        """Say whether every step went through."""
        return self.full_at is None


class _FullError(Exception):
    """A change of a part did not fit."""

    def __init__(self, full: Full) -> None:
        super().__init__(full)
        self.full = full


def replay(
    loading: Sequence[Change],
    step: Round,
    *,
    others: Sequence[Sequence[Change]] = (),
    capacity: int | None = None,
    expandable: bool = False,
    steps: int = 3,
) -> Replayed:
    """Load, then take steps on a card of `capacity` bytes (None: without end) until the reserved bytes stay.

    What `loading` does not free is there for ever. At least `steps` are taken and at most LONGEST, or `steps` if that
    is more. `capacity` is what a process may have: the card's memory without the CUDA context and other processes.
    """
    allocator = CachingAllocator(capacity, expandable=expandable)
    rest = _left(step)
    number = retries = 0
    try:
        _run(allocator, [(("loading", key), size, stream) for key, size, stream in loading], (0, "loading"))
        for number, passes in enumerate(_in_turn(step, others, max(steps, LONGEST)), 1):
            before, retries = allocator.peak_reserved, allocator.retries
            for part, changes in _parts(step._replace(passes=passes), first=number == 1):
                _run(allocator, changes, (number, part))
            for key in rest:
                allocator.free(key)
            if not others and number >= steps and allocator.peak_reserved == before:
                break
    except _FullError as error:
        return _result(allocator, number, retries, error.full)
    return _result(allocator, number, retries)


def _in_turn(step: Round, others: Sequence[Sequence[Change]], most: int) -> list[Sequence[Change]]:
    """Return the passes of each step."""
    half = len(others) // 2
    return [*others[:half], step.passes, *others[half:], step.passes] if others else [step.passes] * most


def _parts(step: Round, *, first: bool) -> Iterator[tuple[str, Iterable[Change]]]:
    """Yield the parts of a step in order. Torch's optimizers make all their state before they update with it."""
    yield "passes", step.passes
    for _ in range(step.micro_batches - 1):
        yield "later", step.later
    yield "clipping", step.clipping
    if first:
        yield "state", [(("state", place), size, 0) for place, size in enumerate(step.state)]
    yield "update", step.update


def _left(step: Round) -> list[Hashable]:
    """Return the keys that a step leaves behind; every step leaves the same."""
    there: dict[Hashable, None] = {}
    for part, changes in _parts(step, first=False):
        before = len(there)
        for key, size, _ in changes:
            if size > 0:
                there[key] = None
            elif size < 0:
                del there[key]
        assert part != "later" or len(there) <= before, "further micro-batches leave storages behind"
    return list(there)


def _run(allocator: CachingAllocator, changes: Iterable[Change], place: tuple[int, str]) -> None:
    for at, (key, size, stream) in enumerate(changes):
        if size < 0:
            allocator.free(key)
        elif size > 0:
            try:
                allocator.malloc(key, size, stream)
            except CardFullError as error:
                raise _FullError(Full(*place, at, error.missing, str(error))) from error


def _result(allocator: CachingAllocator, number: int, before: int, full: Full | None = None) -> Replayed:
    return Replayed(
        reserved=allocator.peak_reserved,
        allocated=allocator.peak_allocated,
        retries=allocator.retries - before,
        retries_in_all=allocator.retries,
        steps=number,
        full_at=full,
    )

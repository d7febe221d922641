"""What the caching allocator holds for a step: the model's storages, then the trace's, one by one, step after step."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from hf_efficient.memory.blocks import BLOCK, whole
from hf_efficient.memory.extend import Segment
from hf_efficient.memory.lengths import drawn
from hf_efficient.memory.optimizers import Update
from hf_efficient.memory.replay import Change, Replayed, Round, replay
from hf_efficient.memory.shares import Shares
from hf_efficient.memory.traffic import DDP_BUCKET

STREAMS = {"gathered": 1, "bucket": 2}
"""Role of a storage -> the CUDA stream that allocates it; FSDP and ZeRO gather and reduce in streams of their own."""
IN_FLIGHT = 2
"""Gatherings that FSDP1's host is ahead of the card: _FreeEventQueue in torch/distributed/fsdp/_limiter_utils.py."""
MOMENTS = 2
"""Storages of one weight's optimizer state."""
DEEPSPEED_STATES = 3
"""Flat storages of DeepSpeed's own update, there before the first step: float32 weights and two moments."""


class Reserve(NamedTuple):
    """What is allocated while a model is loaded, and by every step; the passes of other lengths may come between."""

    loading: Sequence[Change]
    step: Round
    others: Sequence[Sequence[Change]] = ()
    expandable: bool = False
    """The allocator's segments grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""

    def on(self, capacity: int | None = None) -> Replayed:
        """Return what it takes on a card on which a process may have `capacity` bytes; None: without end."""
        return replay(self.loading, self.step, others=self.others, capacity=capacity, expandable=self.expandable)


def reserve(
    cut: Sequence[Segment],
    ended: Update,
    shares: Shares,
    *,
    accumulating: bool,
    workspaces: int,
    short: Sequence[Segment] | None = None,
) -> Reserve:
    """Return what a traced step allocates, with what comes before and after its passes.

    `accumulating`: gradients of an earlier micro-batch are there in the trace. `short`: the passes of a shorter batch,
    where batches differ in length.
    """
    ours = accumulating and shares.wrap is None
    again = ours and not short
    passes = _passes(cut, shares, ours)
    return Reserve(
        loading=[*_loading(shares, workspaces)],
        step=Round(
            passes=passes,
            later=_closed([(("later", key), size, stream) for key, size, stream in _changes(cut, shares)])
            if again
            else (),
            micro_batches=2 if again else 1,
            clipping=_ending(ended, "clipping"),
            state=_state(ended, shares),
            update=[*_ending(ended, "optimizer"), *_in_passing(shares)],
        ),
        others=drawn(passes, _passes(short, shares, ours)) if short else (),
    )


def _loading(shares: Shares, workspaces: int) -> Iterable[Change]:
    """Yield weights, buffers and workspaces. Weights are quantized one by one, each from a 16-bit copy on the card."""
    if shares.unpacked:
        yield "unpacked", shares.unpacked, 0
    for place, unit in enumerate(shares.wrapped):
        yield from _flattened(place, *unit)
    for place, size in enumerate(shares.pieces or ([] if shares.wrapped else _cut(shares.weights))):
        yield ("weight", place), size, 0
    if shares.unpacked:
        yield "unpacked", -shares.unpacked, 0
    for place in range(DEEPSPEED_STATES if shares.optimizer else 0):
        yield ("state", place), (shares.optimizer or 0) // DEEPSPEED_STATES, 0
    for place, size in enumerate(_cut(shares.buffers)):
        yield ("buffer", place), size, 0
    for place in range(2):  # of the forward and the backward thread
        yield ("workspace", place), workspaces // 2, 0


def _flattened(place: int, weights: Sequence[int], part: int) -> Iterable[Change]:
    """Yield what FSDP1 takes to wrap a unit. Source: _init_flat_param, shard in torch/distributed/fsdp/_flat_param.py.

    Trained weights become float32 later, which is left out: the part is there in float32 at once.
    """
    whole = sum(weights)
    yield from (((place, number), size, 0) for number, size in enumerate(weights))
    yield (place, "flat"), whole, 0
    yield from (((place, number), -size, 0) for number, size in enumerate(weights))
    yield (place, "part"), part, 0
    yield (place, "flat"), -whole, 0


def _cut(size: int) -> list[int]:
    """Return the bytes of each of many buffers, as large as DDP's where no more is known."""
    return [DDP_BUCKET] * (size // DDP_BUCKET) + ([size % DDP_BUCKET] if size % DDP_BUCKET else [])


def _changes(cut: Sequence[Segment], shares: Shares) -> list[Change]:
    made: list[Change] = [(e.key, e.size, STREAMS.get(e.role, 0)) for segment in cut for e in segment.events if e.size]
    return _later(made) if shares.wrapped else made


def _later(changes: list[Change]) -> list[Change]:
    """Return changes in which gathered weights go IN_FLIGHT gatherings later, as the host runs ahead of the card."""
    gathered = {key for key, size, stream in changes if size > 0 and stream == STREAMS["gathered"]}
    out: list[Change] = []
    waiting: deque[Change] = deque()
    for change in changes:
        key, size, stream = change
        if key in gathered and size < 0:
            waiting.append(change)
        else:
            if stream == STREAMS["gathered"] and len(waiting) > IN_FLIGHT:
                out.append(waiting.popleft())
            out.append(change)
    return [*out, *waiting]


def _closed(changes: list[Change]) -> list[Change]:
    """Return changes that leave nothing behind; a model may keep small things, such as angles, from pass to pass."""
    left: dict[Hashable, Change] = {}
    for key, size, stream in changes:
        if size > 0:
            left[key] = key, -size, stream
        else:
            left.pop(key, None)
    return [*changes, *left.values()]


def _passes(cut: Sequence[Segment], shares: Shares, ours: bool) -> list[Change]:
    """Return the passes of the first micro-batch; those of a later one stand for it, behind the gradients it leaves."""
    left = [whole(w.numel * w.dtype.itemsize, BLOCK) for w in shares.updated] if ours else _cut(shares.between)
    return [*((("gradient", place), size, 0) for place, size in enumerate(left)), *_changes(cut, shares)]


def _ending(ended: Update, phase: str) -> list[Change]:
    return [(("end", e.key), e.size, 0) for e in ended.events if e.size and e.phase == phase]


def _in_passing(shares: Shares) -> Iterable[Change]:
    for sign in (1, -1):
        yield from ((name, sign * size, 0) for name, size in shares.passing.items())


def _state(ended: Update, shares: Shares) -> list[int]:
    """Return the bytes of each storage of the state, as large a part of it as its weight is of all weights."""
    if shares.optimizer is not None or not ended.state:
        return []
    total = sum(weight.numel for weight in shares.updated)
    each = [ended.state * weight.numel // (MOMENTS * total) for weight in shares.updated]
    return [max(BLOCK, size) for size in each for _ in range(MOMENTS)]

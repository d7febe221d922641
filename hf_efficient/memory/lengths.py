"""Batches of other lengths: their traces, drawn between two that were made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hf_efficient.memory.blocks import BLOCK, whole
from hf_efficient.memory.replay import Change
from hf_efficient.memory.results import Batch

SHARE = 0.5
"""Length of the shorter trace, as a share of the longest."""
SHORTEST = 0.1
DRAWN = 32
"""Batches of other lengths; published runs, and replays alike, reserve hardly more after as many."""

SAID = (
    f"Batches differ in length: what is reserved is that of {DRAWN} batches, drawn evenly from a tenth of the length "
    "to all of it, around one of full length."
)
OTHERWISE = (
    "Batches differ in length, and this model does otherwise with short ones: what those leave in the allocator's "
    "cache is not counted."
)


def varies(batch: Batch) -> bool:
    """Say whether batches differ in length."""
    return batch.padding and batch.seq_len is not None and batch.seq_len > 1


def shorter(batch: Batch) -> Batch:
    """Return the batch at SHARE of its lengths."""
    cut = {name: max(1, round(SHARE * size)) for name in ("seq_len", "target_len") if (size := getattr(batch, name))}
    return replace(batch, **cut)


def drawn(longest: Sequence[Change], short: Sequence[Change]) -> list[list[Change]]:
    """Return the passes at DRAWN lengths between SHORTEST and the longest, from those of `longest` and of `shorter`.

    A storage grows with the length, or with its square where half the length needs less than half of it. Lengths are
    drawn evenly, always the same ones. None where the two do not do the same, as around the width of a window.
    """
    if [(key, size > 0) for key, size, _ in longest] != [(key, size > 0) for key, size, _ in short]:
        return []
    grow = [_growth(size, less) for (_, size, _), (_, less, _) in zip(longest, short, strict=True)]
    lengths = random.Random(0)
    return [_at(lengths.uniform(SHORTEST, 1), longest, grow) for _ in range(DRAWN)]


Growth = tuple[float, int]
"""Bytes that grow, and with which power of the length."""


def _growth(size: int, less: int) -> Growth:
    power = 1 if abs(less) >= abs(size) * SHARE else 2
    return (size - less) / (1 - SHARE**power), power


def _at(share: float, longest: Sequence[Change], grow: Sequence[Growth]) -> list[Change]:
    changes = []
    for (key, size, stream), (grows, power) in zip(longest, grow, strict=True):
        now = max(BLOCK, whole(round(abs(size) - abs(grows) * (1 - share**power)), BLOCK))
        changes.append((key, now if size > 0 else -now, stream))
    return changes

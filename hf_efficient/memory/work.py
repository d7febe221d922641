"""What a traced step computes and moves: its kernels, each with how often it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hf_efficient.memory.extend import Segment


class Kernel(NamedTuple):
    """One operation on a GPU."""

    op: str
    """As ATen calls it, or what imitates a kernel of another package."""
    phase: str
    """forward, recompute or backward."""
    dtype: str
    flops: int
    """Multiplications and additions of products; 0 for what only moves data."""
    moved: int
    """Bytes read and written."""


Work = Mapping[Kernel, int]
"""Kernel -> how often it runs in one micro-batch."""


def work(cut: Iterable[Segment]) -> Work:
    """Return the kernels of a traced step."""
    events = (event for segment in cut for event in segment.events if event.moved or event.flops)
    return Counter(
        Kernel(e.op.removeprefix("aten.").partition(".")[0], e.phase, e.dtype, e.flops, e.moved) for e in events
    )

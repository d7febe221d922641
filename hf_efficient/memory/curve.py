"""A timeline made ready to be drawn: few enough points, and each phase wide enough to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from hf_efficient.memory.results import PARTS, Timeline

POINTS = 600
"""More than a picture has columns for, and few enough to be drawn at once."""
LEAST = 0.14
"""Share of the axis that a phase gets before its moments are counted: clipping has few, and needs room for its name."""


class Band(NamedTuple):
    """A phase's place on the axis, which runs from 0 to 1."""

    phase: str
    start: float
    end: float


class Curve(NamedTuple):
    """Bytes of each part along the step, and where the phases and the peak are."""

    x: list[float]
    parts: dict[str, list[int]]
    bands: list[Band]
    peak: int
    """Which of the points is the highest."""


def curve(timeline: Timeline, points: int = POINTS) -> Curve:
    """Return at most about `points` moments of a step, the highest of those that lie together, and so the peak.

    A phase with more moments is wider, and each is wide enough to be seen.
    """
    live = timeline.live()
    runs = _runs(timeline.phases)
    bands = _bands(runs)
    x, kept = [], []
    for (_, moments), band in zip(runs, bands, strict=True):
        width = band.end - band.start
        step = max(1, round(len(moments) / (points * width)))
        for first in range(moments.start, moments.stop, step):
            together = range(first, min(first + step, moments.stop))
            highest = timeline.peak if timeline.peak in together else max(together, key=live.__getitem__)
            x.append(band.start + width * (highest - moments.start) / len(moments))
            kept.append(highest)
        x.append(band.end)
        kept.append(kept[-1])
    parts = {part: [timeline.parts[part][moment] for moment in kept] for part in PARTS}
    return Curve(x, parts, bands, peak=kept.index(timeline.peak))


def _runs(phases: Sequence[str]) -> list[tuple[str, range]]:
    """Return each phase with its moments; recomputing belongs to the backward pass that it interrupts."""
    runs, start = [], 0
    for phase, moments in groupby("backward" if phase == "recompute" else phase for phase in phases):
        stop = start + sum(1 for _ in moments)
        runs.append((phase, range(start, stop)))
        start = stop
    return runs


def _bands(runs: Sequence[tuple[str, range]]) -> list[Band]:
    total = sum(len(moments) for _, moments in runs)
    least = min(LEAST, 0.6 / len(runs))
    ends = list(accumulate(least + (1 - least * len(runs)) * len(moments) / total for _, moments in runs))
    return [Band(phase, start, end) for (phase, _), start, end in zip(runs, [0.0, *ends], ends, strict=False)]

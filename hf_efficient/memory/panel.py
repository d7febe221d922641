"""One training step as a timeline of live bytes, its phases named and its peak marked."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hf_efficient.memory.bars import COLOURS
from hf_efficient.memory.curve import Curve, curve
from hf_efficient.memory.results import GIB, Timeline
from hf_efficient.memory.words import amount, unit, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 4.35
"""Inches of a timeline with its texts."""
THIN = 0.006
"""Share of the axis that is a visible line."""
LETTERS = 56
"""Of the peak's name on a line."""


def draw_step(axes: Axes, timeline: Timeline, name: str, *, highest: float) -> None:
    """Draw the parts upon each other along the step; `name` is what sets this step apart from others on the page.

    `highest` GiB are the highest peak on the page: what stands side by side has one scale.
    """
    shown = curve(timeline)
    own_unit = unit(highest)
    scale = own_unit.per_gib / GIB
    layers = [[size * scale for size in shown.parts[part]] for part in COLOURS]
    axes.stackplot(shown.x, *layers, colors=list(COLOURS.values()), linewidth=0)
    _phases(axes, shown)
    peak = sum(sizes[shown.peak] for sizes in shown.parts.values())
    lines = wrapped(f"peak: {amount(peak / GIB)}, {timeline.label}", LETTERS)
    axes.set_ylim(0, highest * own_unit.per_gib * (1.14 + 0.09 * len(lines)))
    _column(axes, shown, scale)
    _peak(axes, (shown.x[shown.peak], peak * scale), lines)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.locator_params(axis="y", nbins=7, steps=(1, 2, 5, 10))
    axes.set_ylabel(own_unit.name)
    axes.set_title(_title(name), loc="left", size=12, weight="bold")
    axes.set_xlabel("progress through the step (short phases are drawn wider)", labelpad=30)


def _phases(axes: Axes, shown: Curve) -> None:
    """Shade every other phase, and write its name below where it has room."""
    axes.set_xlim(0, 1)
    below = axes.get_xaxis_transform()
    for number, band in enumerate(shown.bands):
        axes.axvspan(band.start, band.end, color="#EEEEEE" if number % 2 else "white", zorder=-2)
        axes.axvspan(band.start, band.end, -0.125, -0.02, color="#DDDDDD" if number % 2 else "#EEEEEE", clip_on=False)
        text = axes.text((band.start + band.end) / 2, -0.0725, band.phase, transform=below, ha="center", va="center")
        ends = axes.transData.transform([(band.start, 0), (band.end, 0)])
        if text.get_window_extent().width > ends[1][0] - ends[0][0]:
            text.remove()


def _title(name: str) -> str:
    """Return at most two lines; the bar of the same estimate has the whole name."""
    first, *more = wrapped(f"The step, moment by moment{': ' if name else ''}{name}", 58)
    return "\n".join([first, *(textwrap.shorten(" ".join(more), 58, placeholder=" ...") for _ in more[:1])])


def _column(axes: Axes, shown: Curve, scale: float) -> None:
    """Draw the peak's parts as wide as can be seen: one moment of thousands is thinner than a line."""
    left = min(max(shown.x[shown.peak] - THIN / 2, 0), 1 - THIN)
    bottom = 0.0
    for part, colour in COLOURS.items():
        size = shown.parts[part][shown.peak] * scale
        axes.bar(left, size, THIN, bottom, align="edge", color=colour, linewidth=0)
        bottom += size


def _peak(axes: Axes, place: tuple[float, float], lines: list[str]) -> None:
    """Mark the peak with a dot, and name it above, inside of the axes."""
    x, y = place
    axes.plot([x], [y], "o", color="black", markersize=9, markeredgecolor="white", markeredgewidth=1.5, clip_on=False)
    note = axes.annotate(
        "\n".join(lines), (x, y), xytext=(0, 9), textcoords="offset points", ha="center", va="bottom", weight="bold"
    )
    text, frame = note.get_window_extent(), axes.get_window_extent()
    inwards = max(frame.x0 + 6 - text.x0, 0) - max(text.x1 - frame.x1, 0)
    note.xy = (x + inwards / frame.width, y)

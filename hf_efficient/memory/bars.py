"""What lives on the card at the peak, as one bar of its parts per estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.memory.results import PARTS, Estimate
from hf_efficient.memory.words import Unit, amount, unit, verdict, would_do, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = dict(zip(PARTS, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"), strict=True))
"""Okabe and Ito, "Color Universal Design", 2008: told apart by people with any kind of colour blindness."""
LIGHT_LETTERS = ("weights", "optimizer", "logits")
"""Parts whose colour is dark."""
CACHE = "PyTorch's cache"
OTHER = f"{CACHE} and CUDA itself"
LINE, BAR, GAP = 0.235, 0.5, 0.23
"""Inches of a line of text, of a bar, and between two estimates."""
LETTERS = 62
"""On a line above a bar."""
FAR = 2.5
"""What is so many times larger than the tensors, a card or CUDA itself, is told and not drawn: they would be thin."""


def wanted_height(estimates: Sequence[Estimate], own: Sequence[str]) -> float:
    """Return the inches that the bars with their texts take."""
    return sum(_height(estimate, name) for estimate, name in zip(estimates, own, strict=True)) + 0.25


def draw_bars(axes: Axes, estimates: Sequence[Estimate], own: Sequence[str]) -> None:
    """Draw a bar per estimate, its name above and whether it fits below, and a line where the card ends."""
    right = _right(estimates)
    own_unit = unit(right)
    ends = {e.capacity_gib: e.gpu or "the card" for e in estimates if e.capacity_gib and e.capacity_gib <= FAR * right}
    axes.set_xlim(0, max([right, *ends]) * own_unit.per_gib * 1.04)
    axes.set_ylim(wanted_height(estimates, own), 0)  # a unit is an inch, from the top down
    y = 0.25
    for estimate, name in zip(estimates, own, strict=True):
        y = _lines(axes, _above(estimate, name), y, weight="bold")
        _bar(axes, estimate, y=y + BAR / 2, own_unit=own_unit)
        colour = "#9C3A00" if _is_hopeless(estimate) else "#00573F"
        y = _lines(axes, _below(estimate), y + BAR, color=colour) + GAP
    for end, card in ends.items():
        _line(axes, end * own_unit.per_gib, f"{card}: {amount(end)}")
    axes.locator_params(axis="x", nbins=7, steps=(1, 2, 5, 10))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{own_unit.name} on one GPU, at the highest moment of the step")


def legend(figure: Figure, estimates: Sequence[Estimate], *, place: tuple[float, float]) -> None:
    """Name the colours; for one estimate with their amounts, which small parts have no room for in the bar."""
    from matplotlib.patches import Patch

    alone = estimates[0] if len(estimates) == 1 else None
    number = unit(_right(estimates)).number
    patches = [
        Patch(color=colour, label=f"{part} {number(alone.breakdown.get(part, 0))}" if alone else part)
        for part, colour in COLOURS.items()
    ]
    if any(_drawn(e) > e.allocated_gib for e in estimates):
        label = OTHER if any(e.beside_gib for e in estimates) else CACHE
        patches.append(Patch(facecolor="white", edgecolor="#777777", hatch="////", label=label))
    figure.legend(
        handles=patches, loc="upper left", bbox_to_anchor=place, ncols=3, frameon=False, fontsize=11,
        handlelength=1.2, columnspacing=1.4, borderaxespad=0,
    )  # fmt: skip


def _drawn(estimate: Estimate) -> float:
    """Return where the bar ends."""
    whole = estimate.taken_gib
    return whole if whole <= FAR * estimate.allocated_gib else estimate.allocated_gib


def _right(estimates: Sequence[Estimate]) -> float:
    return max(map(_drawn, estimates))


def _lines(axes: Axes, lines: Sequence[str], y: float, **style: Any) -> float:
    """Write lines from `y` downwards, on white where they cross the card's end, and return where they end."""
    for number, line in enumerate(lines):
        place = y + LINE * (number + 0.5)
        axes.text(0, place, line, va="center", bbox={"facecolor": "white", "linewidth": 0, "pad": 1}, zorder=3, **style)
    return y + LINE * len(lines)


def _above(estimate: Estimate, name: str) -> list[str]:
    whole = estimate.taken_gib
    other = OTHER if estimate.beside_gib else CACHE
    told = f"{amount(estimate.allocated_gib)} of tensors"
    told += f", {amount(whole)} with {other}" if whole > estimate.allocated_gib else ""
    together = wrapped(f"{name}{': ' if name else ''}{told}", LETTERS)
    return together if len(together) == 1 or not name else [*wrapped(f"{name}:", LETTERS), *wrapped(told, LETTERS)]


def _below(estimate: Estimate) -> list[str]:
    card = estimate.gpu or "the card"
    capacity = f" ({amount(estimate.capacity_gib)})" if estimate.capacity_gib else ""
    told = f"{card}{capacity}: {verdict(estimate)}" if verdict(estimate) else would_do(estimate)
    return wrapped(told, 72)


def _is_hopeless(estimate: Estimate) -> bool:
    return estimate.fits is False or bool(estimate.cards and not any(card.fits for card in estimate.cards))


def _height(estimate: Estimate, name: str) -> float:
    return LINE * (len(_above(estimate, name)) + len(_below(estimate))) + BAR + GAP


def _bar(axes: Axes, estimate: Estimate, *, y: float, own_unit: Unit) -> None:
    left = 0.0
    for part, colour in COLOURS.items():
        width = estimate.breakdown.get(part, 0) * own_unit.per_gib
        axes.barh(y, width, BAR, left, color=colour, edgecolor="white", linewidth=0.8)
        value = own_unit.number(estimate.breakdown.get(part, 0))
        _inside(axes, (left, width, y), (f"{part}\n{value}", value), part)
        left += width
    other = _drawn(estimate) * own_unit.per_gib - left
    if other > 0:
        axes.barh(y, other, BAR, left, facecolor="white", edgecolor="#777777", hatch="////", linewidth=0.8)


def _inside(axes: Axes, box: tuple[float, float, float], texts: Sequence[str], part: str) -> None:
    """Write the first of the texts that has room between `left` and `left + width`, or none."""
    left, width, y = box
    ends = axes.transData.transform([(left, y), (left + width, y)])
    style: Any = {
        "color": "white" if part in LIGHT_LETTERS else "black",
        "bbox": {"facecolor": COLOURS[part], "linewidth": 0, "pad": 0.5},  # over the line of the card's end
        "zorder": 3,
    }
    for text in texts:
        shown = axes.text(left + width / 2, y, text, ha="center", va="center", size=10.5, linespacing=1.1, **style)
        if shown.get_window_extent().width <= ends[1][0] - ends[0][0] - 6:
            return
        shown.remove()


def _line(axes: Axes, x: float, text: str) -> None:
    axes.axvline(x, color="black", linewidth=1.8, linestyle=(0, (4, 2)))
    right = x > sum(axes.get_xlim()) / 2
    axes.annotate(
        text, (x, 0), xytext=(-6 if right else 6, -2), textcoords="offset points", ha="right" if right else "left",
        va="top", size=10.5,
    )  # fmt: skip

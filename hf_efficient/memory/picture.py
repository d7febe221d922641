"""Pictures of estimates: what lives at the peak as bars, and the step as a timeline, as PNG or SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.emit.files import write
from hf_efficient.memory.bars import draw_bars, legend, wanted_height
from hf_efficient.memory.panel import HEIGHT, draw_step
from hf_efficient.memory.results import Estimate
from hf_efficient.memory.words import Apart, apart, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
TIMELINES = 4
"""As many estimates as get a timeline each; for more there are the bars alone."""
WIDTH, LEFT, RIGHT = 7.5, 0.75, 0.25
"""Inches: narrow, so that the letters are large enough where a phone shows the whole width."""
DPI = 160
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a $ in a name is a $
    "svg.fonttype": "none",  # letters stay letters: they can be searched, read aloud and copied
    "svg.hashsalt": "hf_efficient",  # the same estimate is the same file
}


def require_drawable(paths: Sequence[Path]) -> None:
    """Raise ValueError in one sentence for a file that is no picture, or where matplotlib is missing."""
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            name = path.stem or "memory"
            raise ValueError(
                f"Cannot draw {path}, because a picture is PNG or SVG by the end of its name: "
                f"write {name}.png or {name}.svg."
            )
        if not path.absolute().parent.is_dir():
            raise ValueError(
                f"Cannot draw {path}, because there is no folder {path.parent}: make it, or write somewhere else."
            )
    if paths and find_spec("matplotlib") is None:
        raise ValueError("Pictures need matplotlib, which is not installed: pip install 'hf-efficient[plot]'.")


def draw(estimates: Sequence[Estimate], path: Path) -> None:
    """Draw estimates side by side into a PNG or SVG file: bars of the peak, and up to four timelines below them.

    The file is whole or not there. Raises ValueError in one sentence for another suffix, a folder that cannot be
    written to, and where matplotlib is missing.
    """
    require_drawable([path])
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    names = apart(estimates)
    with rc_context(STYLE):
        figure = _figure(estimates, names)
        picture = io.BytesIO()
        about = {"Title": f"GPU memory of one training step: {names.shared}"}
        figure.savefig(picture, format=kind, dpi=DPI, metadata=about | ({"Date": None} if kind == "svg" else {}))
    write(path, picture.getvalue())


def _figure(estimates: Sequence[Estimate], names: Apart) -> Figure:
    """Return the figure, built from the top down: title, bars, their colours, timelines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    subtitle = wrapped(names.shared, 68)
    head = 0.55 + 0.23 * len(subtitle)
    bars = wanted_height(estimates, names.own)
    timelines = list(zip(estimates, names.own, strict=True)) if len(estimates) <= TIMELINES else []
    height = head + bars + 1.45 + len(timelines) * HEIGHT
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)  # what is measured is what is drawn
    FigureCanvasAgg(figure)  # Agg measures text, whatever the backend of the process
    page = _Page(figure, height)
    page.title("GPU memory of one training step", subtitle)
    axes = page.axes(top=head, height=bars)
    draw_bars(axes, estimates, names.own)
    legend(figure, estimates, place=(LEFT / WIDTH, 1 - (head + bars + 0.62) / height))
    highest = max(estimate.allocated_gib for estimate in estimates)
    for number, (estimate, own) in enumerate(timelines):
        top = head + bars + 1.45 + number * HEIGHT
        draw_step(page.axes(top=top + 0.55, height=HEIGHT - 1.3), estimate.timeline, own, highest=highest)
    return figure


class _Page:
    """A figure on which places are inches from its top."""

    def __init__(self, figure: Figure, height: float) -> None:
        self.figure, self.height = figure, height

    def axes(self, *, top: float, height: float) -> Axes:
        """Return axes as wide as the page."""
        wide = (WIDTH - LEFT - RIGHT) / WIDTH
        return self.figure.add_axes((LEFT / WIDTH, 1 - (top + height) / self.height, wide, height / self.height))

    def title(self, title: str, subtitle: Sequence[str]) -> None:
        """Write a title and the lines below it."""
        x = 0.25 / WIDTH
        self.figure.text(x, 1 - 0.14 / self.height, title, size=16, weight="bold", va="top")
        self.figure.text(x, 1 - 0.5 / self.height, "\n".join(subtitle), va="top", color="#333333")

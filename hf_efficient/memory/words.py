"""Estimates in words, for the table and for the picture: amounts, names, and what sets several estimates apart."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from hf_efficient.memory.results import Batch, Estimate
from hf_efficient.wording import listed


class Unit(NamedTuple):
    """What memory is counted in, and how many make one GiB."""

    name: str
    per_gib: int

    def number(self, gib: float) -> str:
        """Return an amount of GiB in this unit, to about three digits and without the unit's name."""
        value = gib * self.per_gib
        return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"

    def cell(self, gib: float) -> str:
        """Return an amount as a column has it, its point below those of others."""
        return f"{gib * self.per_gib:.2f}"


GIB, MIB = Unit("GiB", 1), Unit("MiB", 1024)


def unit(largest: float) -> Unit:
    """Return the unit for figures of which `largest`, in GiB, is the largest: MiB where it is below one GiB."""
    return GIB if abs(largest) >= 1 else MIB


def amount(gib: float) -> str:
    """Return an amount with its unit, such as `3.10 GiB` or `512 MiB`."""
    own = unit(gib)
    return f"{own.number(gib)} {own.name}"


def rows(batch: Batch) -> str:
    """Say what a micro-batch is, such as `batch 8 x 2048` or `batch 8 x 512 to 128`."""
    length = f" x {batch.seq_len}" if batch.seq_len else ""
    target = f" to {batch.target_len}" if batch.target_len else ""
    return f"batch {batch.size}{length}{target}{', padded' if batch.padding else ''}"


def short(model: str) -> str:
    """Return a model's name without its owner or the folders above it."""
    return model.rstrip("/").rpartition("/")[2] or model


def verdict(estimate: Estimate) -> str:
    """Say whether it fits on the card that was asked about, and by how much; empty where none was."""
    if estimate.fits is None:
        return ""
    margin = estimate.margin_gib
    if margin is None:
        return "fits" if estimate.fits else "does not fit"
    if estimate.tight:
        return f"fits, but only just: {amount(margin)} to spare, and it costs speed to find room"
    if estimate.fits:
        return f"fits with {amount(margin)} to spare"
    return (
        f"does not fit: {amount(-margin)} over" if margin < 0 else f"does not fit: no more than {amount(margin)} left"
    )


def digits(value: float) -> str:
    """Return a number to three digits, or whole with commas where it has more."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def rate(estimate: Estimate) -> str:
    """Return what `tokens_per_s` counts: rows of what has no tokens, such as images."""
    return "tokens/s" if estimate.batch.seq_len else "rows/s"


def would_do(estimate: Estimate, most: int = 3) -> str:
    """Say which cards would do, the smallest first, `most` of them by name; empty where a card was asked about."""
    if not estimate.cards:
        return ""
    fitting = [card.gpu for card in estimate.cards if card.fits]
    if not fitting:
        return f"fits on none of the {len(estimate.cards)} cards of the table"
    larger = len(fitting) - most
    return f"fits on {listed([*fitting[:most], *([f'{larger} larger'] if larger > 0 else [])])}"


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` letters; `8 x 2048` and `3.10 GiB` stay together."""
    whole = re.sub(r"(?<=\d) (?=[xGM])|(?<=x) (?=\d)|(?<=batch) ", "\u00a0", text)
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(whole, width, break_on_hyphens=False)]


class Apart(NamedTuple):
    """Several estimates' names: what they share, and what each has of its own."""

    shared: str
    own: tuple[str, ...]


def apart(estimates: Sequence[Estimate]) -> Apart:
    """Return what to call estimates side by side: model, tricks and batch, each said once where it is the same.

    One estimate shares all with itself, and its own name is empty.
    """
    tricks = [_tricks(estimate.plan) for estimate in estimates]
    same = [trick for trick in tricks[0] if all(trick in others for others in tricks)]
    left = [[trick for trick in each if trick not in same] for each in tricks]
    plans = [", ".join(each) or ("as above" if any(left) else "") for each in left]
    parts = (
        _split([short(e.model) for e in estimates]),
        (", ".join(same), plans),
        _split([_sized(e) for e in estimates]),
    )
    own = (", ".join(filter(None, each)) for each in zip(*(part[1] for part in parts), strict=True))
    return Apart(", ".join(part[0] for part in parts if part[0]), tuple(own))


def _sized(estimate: Estimate) -> str:
    return rows(estimate.batch)


def _split(texts: list[str]) -> tuple[str, list[str]]:
    """Return the text that all share, else each one's own."""
    alike = len(set(texts)) == 1
    return (texts[0], [""] * len(texts)) if alike else ("", texts)


def _tricks(plan: str) -> list[str]:
    """Return the spellings in a plan's text, each once; a comma inside of parentheses parts nothing."""
    return list(dict.fromkeys(filter(None, re.split(r",?\s+(?![^(]*\))", plan))))

"""Sentences that every error shares: what you asked, why it cannot be, what to do instead."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that is spelled most like `name`, or an empty string."""
    spelled = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    return spelled[close[0]] if close else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that nothing has: with the nearest name, else with all of them."""
    known = sorted(known)
    close = nearest(name, known)
    remedy = f"did you mean {close}?" if close else f"there are {', '.join(known) or 'none'}."
    return ValueError(f"There is no {kind} {name!r}: {remedy}")


def one_sentence(error: BaseException) -> str:
    """Return an error's text on one line, so that a terminal shows one sentence and no traceback."""
    return " ".join(str(error).split()) or type(error).__name__


def listed(names: Iterable[str], last: str = "and") -> str:
    """Join names as a sentence does: `a, b and c`."""
    *head, tail = list(names) or [""]
    return f"{', '.join(head)} {last} {tail}" if head else tail

"""What a check says: what was found, why it matters, what to do instead, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")
"""From the worst: an error fails or trains wrongly, a warning wastes or risks, an info is good to know."""


class Place(NamedTuple):
    """A line of a file; line 0 means the file as a whole."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


NOWHERE = Place()
"""No file in particular."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or good to know: what is there, why it matters, what to do instead."""

    level: Level
    what: str
    why: str
    fix: str
    where: Place = NOWHERE
    code: str = ""
    """The check that found it, as `explain CODE` knows it."""

    def coded(self, code: str) -> Finding:
        """Return the finding under the code of its check."""
        return replace(self, code=code)

    def row(self) -> dict[str, Any]:
        """Return the finding as data that JSON can hold."""
        keys = ("code", "level", "what", "why", "fix")
        return {key: getattr(self, key) for key in keys} | {"where": str(self.where)}


def error(what: str, *, why: str, fix: str, at: Place = NOWHERE) -> Finding:
    """Return a finding of what fails, or trains something else than was asked for."""
    return Finding(level="error", what=what, why=why, fix=fix, where=at)


def warning(what: str, *, why: str, fix: str, at: Place = NOWHERE) -> Finding:
    """Return a finding of what wastes the card, loses precision or fails in some runs."""
    return Finding(level="warning", what=what, why=why, fix=fix, where=at)


def info(what: str, *, why: str, fix: str, at: Place = NOWHERE) -> Finding:
    """Return a finding that is good to know and needs no change."""
    return Finding(level="info", what=what, why=why, fix=fix, where=at)

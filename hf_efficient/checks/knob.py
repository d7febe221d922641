"""A value of the run with its author."""

from __future__ import annotations

from typing import Any, NamedTuple

from hf_efficient.finding import NOWHERE, Place
from hf_efficient.reading.settings import UNKNOWN

UNSEEN = "the launch file that the command names and that was not given"


class Knob(NamedTuple):
    """A value of the run, who said it, and where. UNKNOWN: a file sets it to what reading cannot know."""

    value: Any
    by: str
    place: Place = NOWHERE

    def row(self) -> dict[str, Any]:
        """Return the knob as data that JSON can hold; what is unknown is null and says so."""
        unknown = self.value is UNKNOWN
        value = None if unknown else self.value if isinstance(self.value, str | int | float | bool) else str(self.value)
        by = f"{self.by}: known only when it runs" if unknown else self.by
        return {"value": value, "by": by, "file": str(self.place)}

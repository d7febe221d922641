"""What files say about one subject: values, the place of each, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.finding import NOWHERE, Place


class Unknown:
    """A value that a file gives and reading cannot know: it is false, and so is every comparison with it.

    Arithmetic with it gives it again. Ask `value is UNKNOWN` where the difference matters, and beware of
    `not value` and `value not in (...)`, which hold for it.
    """

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "unknown"

    def _never(self, other: object) -> bool:
        return False

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _never
    __hash__ = object.__hash__

    def _again(self, *_: object) -> Unknown:
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = _again
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __neg__ = _again


UNKNOWN: Any = Unknown()


class Settings:
    """Values under dotted keys (`zero_optimization.stage`), each with its place.

    `open` says that more may be set than is seen (`**keywords` of a call, command-line arguments): an absent key is
    then unknown and not at its default. `defaults` are what the stack takes for what is not said.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        place: Place = NOWHERE,
        places: Mapping[str, Place] | None = None,
        open: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.values: dict[str, Any] = {str(key): value for key, value in (values or {}).items()}
        self.place = place
        self.places: dict[str, Place] = dict(places or {})
        self.open = open
        self.defaults: dict[str, Any] = dict(defaults or {})

    def __bool__(self) -> bool:
        return bool(self.values) or self.open

    def __contains__(self, path: str) -> bool:
        return self.said(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Settings({self.values}{', open' if self.open else ''})"

    def said(self, path: str) -> bool:
        """Is the key there, known or not?"""
        return self._find(path) is not _ABSENT

    def get(self, path: str, default: Any = None) -> Any:
        """Return what is said; else UNKNOWN where more may be said than seen; else the stack's default, else yours."""
        found = self._find(path)
        if found is not _ABSENT:
            return found
        return UNKNOWN if self.open else self.defaults.get(path, default)

    def knows(self, path: str) -> bool:
        """Is the value known (said, or at its default)?"""
        return self.get(path) is not UNKNOWN

    def on(self, path: str) -> bool:
        """Is the value known to be true (not false, zero, empty, none or "auto")?"""
        value = self.get(path)
        return bool(value) and value != "auto"

    def off(self, path: str) -> bool:
        """Is the value known to be false, zero, empty or none, said or by default?"""
        value = self.get(path)
        return value is not UNKNOWN and not value

    def number(self, path: str) -> Any:
        """Return a known number (of that value or its default), else UNKNOWN: strings and "auto" are none."""
        value = self.get(path)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else UNKNOWN

    def text(self, path: str) -> str:
        """Return a known string, else an empty one."""
        value = self.get(path)
        return value if isinstance(value, str) else ""

    def part(self, path: str) -> Settings:
        """Return what is said below a key as settings of their own; empty where nothing is."""
        value = self._find(path)
        below = {key.removeprefix(f"{path}."): at for key, at in self.places.items() if key.startswith(f"{path}.")}
        values = value if isinstance(value, Mapping) else {}
        open = self.open if value is _ABSENT else value is UNKNOWN
        return Settings(values, place=self.where(path), places=below, open=open)

    def where(self, path: str = "") -> Place:
        """Return the place of a key, of the nearest key above it, or of all."""
        while path:
            if path in self.places:
                return self.places[path]
            path = path.rpartition(".")[0]
        return self.place

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield every leaf's dotted key and value; lists are leaves."""
        yield from _leaves(self.values, prefix)

    def over(self, other: Settings) -> Settings:
        """Return both, these winning key by key at the top level."""
        places = {k: at for k, at in other.places.items() if k.partition(".")[0] not in self.values}
        return Settings(
            other.values | self.values,
            place=self.place if self.values else other.place,
            places=places | self.places,
            open=self.open or other.open,
            defaults=other.defaults | self.defaults,
        )

    def deeply_over(self, other: Settings) -> Settings:
        """Return both, these winning leaf by leaf: `zero_stage` of a command does not hide the file's other keys."""
        return Settings(
            _deep(other.values, self.values),
            place=self.place if self.values else other.place,
            places=other.places | self.places,
            open=self.open or other.open,
            defaults=other.defaults | self.defaults,
        )

    def _find(self, path: str) -> Any:
        value: Any = self.values
        for key in path.split("."):
            if value is UNKNOWN:
                return UNKNOWN
            if not isinstance(value, Mapping) or key not in value:
                return _ABSENT
            value = value[key]
        return value


_ABSENT = object()
NOTHING = Settings()
"""A subject that no file speaks of."""


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(made.get(key), Mapping)
        made[key] = _deep(made[key], value) if both else value
    return made


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

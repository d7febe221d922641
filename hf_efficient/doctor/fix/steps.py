"""What is to be done with one old name among others: renamed, given another value, moved, taken out, or left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from packaging.version import Version

from hf_efficient.reading.settings import UNKNOWN
from hf_efficient.renames import Rename

KEEP = object()
"""Stands for the value as it is written."""


class Step(NamedTuple):
    """One change of one name, or why there is none."""

    do: Literal["rename", "remove", "into", "leave"]
    new: str = ""
    value: Any = KEEP
    """The new value; of `into`, what the value becomes inside."""
    key: str = ""
    """Of `into`: the key inside the mapping `new`."""
    why: str = ""


def leave(why: str) -> Step:
    """Return the step that changes nothing, with the reason."""
    return Step("leave", why=why)


def step(rename: Rename, value: Any, given: Mapping[str, Any]) -> Step:
    """Return what to do with an old name; `value` and the values of all names that are given may be UNKNOWN."""
    if not rename.new:
        return Step("remove")
    if not rename.new.isidentifier():
        return leave(f"write {rename.new} yourself")
    if rename.old == "warmup_ratio":
        return _ratio(rename, value, given)
    key = _inner_key(rename)
    if key:
        return _into(rename, key, value, given)
    if value is UNKNOWN and rename.becomes:
        return leave(f"its value is computed and would have to change: {rename.value}")
    if rename.value and not rename.becomes:
        return leave(rename.value)
    return _renamed(rename, value, given)


def holds(rename: Rename, version: Version | None) -> bool:
    """Is a name the old one in a release? Yes where the release is unknown."""
    if version is None:
        return True
    if rename.works:
        return not rename.known or version >= Version(rename.known)
    return version >= Version(rename.since.rpartition(" ")[2])


def _renamed(rename: Rename, value: Any, given: Mapping[str, Any]) -> Step:
    made = rename.instead(value) if rename.becomes else (rename.new, value)
    if made is None:
        return leave(rename.value) if value else Step("remove")
    if rename.new not in given:
        return Step("rename", rename.new, made[1] if rename.becomes else KEEP)
    other = given[rename.new]
    wins = rename.works and other is not None
    if other is not UNKNOWN and (wins or (type(other) is type(made[1]) and other == made[1])):
        return Step("remove")
    return leave(f"{rename.new} is given as well: keep one of the two")


def _ratio(rename: Rename, value: Any, given: Mapping[str, Any]) -> Step:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and value == 0):
        return Step("remove")
    if number and value >= 1:
        return leave(f"warmup_steps={value} would be a number of steps and no share of them")
    other = given.get(rename.new, 0)
    if isinstance(other, int | float) and other > 0:
        return Step("remove")  # the steps won over the share
    if rename.new in given:
        return leave("warmup_steps is given as well: keep one of the two")
    return Step("rename", rename.new)


def _inner_key(rename: Rename) -> str:
    """Return the key under which the value goes into a mapping, or an empty string."""
    made = rename.becomes(UNKNOWN) if rename.becomes else None
    return str(next(iter(made))) if isinstance(made, dict) and len(made) == 1 else ""


def _into(rename: Rename, key: str, value: Any, given: Mapping[str, Any]) -> Step:
    if value is None:
        return Step("remove")
    holder = given.get(rename.new, {})
    if not isinstance(holder, Mapping):
        return leave(f"{rename.new} is given in a way that cannot be added to: write {key!r} there yourself")
    if key in holder:
        return leave(f"{rename.new} has {key!r} already: keep one of the two")
    made = rename.becomes(value)[key] if rename.becomes and value is not UNKNOWN else value
    return Step("into", rename.new, KEEP if made is value or made == value else made, key)

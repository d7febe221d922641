"""Small answers that every reader of a script asks for: keywords with places, several branches as one, dicts."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from hf_efficient.finding import Place
from hf_efficient.reading.flow import Around, start
from hf_efficient.reading.lineage import certain, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import UNKNOWN, Settings


def merged(every: Sequence[Settings]) -> Settings:
    """Return what several branches say as one: a key on which they differ, or that one lacks, is unknown."""
    if len(every) == 1:
        return every[0]
    keys = list(dict.fromkeys(key for one in every for key in one))
    values = {key: agreed([one.values.get(key, UNKNOWN) for one in every]) for key in keys}
    places = {key: at for one in reversed(every) for key, at in one.places.items()}
    return Settings(values, place=every[0].place, places=places, open=any(one.open for one in every))


def agreed(values: Sequence[Any]) -> Any:
    """Return the value that all are, or UNKNOWN."""
    first = values[0] if values else UNKNOWN
    same = all(type(value) is type(first) and value is not UNKNOWN and value == first for value in values)
    return first if same else UNKNOWN


def put(settings: Settings, key: str, value: Any, place: Place) -> None:
    """Write a value with its place."""
    settings.values[key] = value
    settings.places = {name: at for name, at in settings.places.items() if not name.startswith(f"{key}.")}
    settings.places[key] = place


def renamed(settings: Settings, names: Mapping[str, str]) -> Settings:
    """Return the settings with keys under other names."""
    values = {names.get(key, key): value for key, value in settings.values.items()}
    places = {names.get(key, key): at for key, at in settings.places.items()}
    return Settings(values, place=settings.place, places=places, open=settings.open)


def sure(script: Script, call: Call) -> bool | None:
    """Is the call surely made? None: a condition is unknown."""
    return certain(script, call.around, call.node)


def literal(script: Script, node: ast.expr | None, around: Around) -> ast.Dict | ast.Call | None:
    """Return the `{...}` or `dict(...)` that an expression is, following names; None where it is another thing."""
    found = lineage(script, node, around)
    dicts = [one for one, _ in found.literals if isinstance(one, ast.Dict)]
    calls = [call.node for call in found.ends if call.name == "dict"]
    every: list[Any] = [*dicts, *calls]
    return every[0] if len(every) == 1 and not found.unknown else None


def items(node: ast.Dict | ast.Call | None) -> dict[str, ast.expr]:
    """Return the items of such a literal: keys that are strings, with the expressions of their values."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {k.value: v for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    return {k.arg: k.value for k in node.keywords if k.arg} if node is not None else {}


def nested_places(script: Script, node: ast.expr | None, around: Around, prefix: str = "") -> dict[str, Place]:
    """Return the place of each key of a literal dict, also of those within it, as dotted keys."""
    found: dict[str, Place] = {}
    waiting: list[tuple[ast.Dict | ast.Call | None, str]] = [(literal(script, node, around), prefix)]
    while waiting:
        one, before = waiting.pop()
        for key, value in items(one).items():
            found[f"{before}{key}"] = script.place(value)
            if isinstance(value, ast.Dict) and before.count(".") < 8:
                waiting.append((value, f"{before}{key}."))
    return found


def after(call: Call, other: Call) -> bool:
    """Does a call stand behind another in the source?"""
    return start(call.node) > start(other.node)

"""Changes of a mapping in a JSON or YAML file: said once, made in the text by position, checked by reading it again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import yaml

from hf_efficient.doctor.fix.text import (
    NEWLINE,
    Edit,
    UnsafeError,
    alone,
    edited,
    line_end,
    line_number,
    line_start,
    newline_of,
    taken_out,
)
from hf_efficient.doctor.fix.tree import Entry, Node, json_tree, yaml_tree


class Change(NamedTuple):
    """One change at a path: the key's name, its value, a key more, or one less."""

    do: Literal["rename", "set", "remove", "add"]
    path: tuple[str, ...]
    value: Any = None
    """The new name, or the new value."""


ORDER = ("set", "add", "remove", "rename")
"""How changes are carried out on data, inner ones first: their paths are those before any of them."""


def changed(text: str, changes: Iterable[Change], *, is_json: bool) -> str:
    """Return a text with changes made in it.

    Raises UnsafeError where the text does not take them, and where reading the result gives anything else than the old
    data with these changes.
    """
    wanted = list(dict.fromkeys(changes)) if all(_hashable(one.value) for one in changes) else list(changes)
    read: Callable[[str], Any] = json.loads if is_json else yaml.safe_load
    tree = json_tree(text) if is_json else yaml_tree(text)
    edits: list[Edit] = []
    gone: dict[tuple[str, ...], list[str]] = {}
    for change in wanted:
        mapping = tree.find(change.path[:-1])
        if change.do == "remove":
            gone.setdefault(change.path[:-1], []).append(change.path[-1])
        elif change.do == "add":
            edits.append(_added(text, mapping, change, is_json))
        else:
            edits.append(_replaced(text, mapping.entry(change.path[-1]), change, is_json))
    for path, keys in gone.items():
        edits += _removed(text, tree.find(path), keys, is_json)
    made = edited(text, edits)
    try:
        same = read(made) == _data(read(text), wanted)
    except (ValueError, yaml.YAMLError):
        same = False
    if not same:
        raise UnsafeError("its layout does not take the change")
    return made


def changed_by_groups(text: str, groups: Sequence[Sequence[Change]], *, is_json: bool) -> tuple[str, list[UnsafeError]]:
    """Return a text with every group of changes that it takes, each whole or not at all, and why others are left."""
    try:
        return changed(text, [change for group in groups for change in group], is_json=is_json), []
    except UnsafeError:
        left = []
    for group in groups:
        try:
            text = changed(text, group, is_json=is_json)
        except UnsafeError as error:
            left.append(UnsafeError(f"{'.'.join(group[0].path)} is left: {error}"))
    return text, left


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Return changes so that the paths of later ones hold when earlier ones are made."""
    return sorted(changes, key=lambda change: (ORDER.index(change.do), -len(change.path)))


def lines(text: str, *, is_json: bool) -> Callable[[tuple[str, ...]], int]:
    """Return a function from a path to the line of its key; 0 where it has none of its own."""
    tree = json_tree(text) if is_json else yaml_tree(text)

    def line(path: tuple[str, ...]) -> int:
        try:
            return line_number(text, tree.find(path[:-1]).entry(path[-1]).place.start) if path else 0
        except UnsafeError:
            return 0

    return line


def _hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


def _data(value: Any, changes: Iterable[Change]) -> Any:
    """Return the data with the changes made: values first, then names."""
    value = copy.deepcopy(value)
    for change in in_order(changes):
        mapping = value
        for key in change.path[:-1]:
            mapping = mapping[key]
        if change.do in ("set", "add"):
            mapping[change.path[-1]] = change.value
        elif change.do == "remove":
            del mapping[change.path[-1]]
        else:
            mapping[change.value] = mapping.pop(change.path[-1])
    return value


def _replaced(text: str, entry: Entry, change: Change, is_json: bool) -> Edit:
    if change.do == "rename":
        quote = text[entry.place.start] if text[entry.place.start] in "\"'" else ""
        return Edit(*entry.place, f"{quote}{change.value}{quote}")
    if not entry.node.plain:
        raise UnsafeError(f"{entry.key} has an anchor, an alias or a tag")
    between = text[entry.place.end : entry.node.span.start]
    if is_json or not NEWLINE.search(between):
        return Edit(*entry.node.span, _unquoted(text, entry, change.value) or _written(change.value, is_json))
    if "#" in between:
        raise UnsafeError("a comment stands between key and value")
    return Edit(entry.place.end, entry.node.span.end, f": {_written(change.value, is_json)}")


def _unquoted(text: str, entry: Entry, value: Any) -> str:
    """Return what stands in quotes where that is how the new value may be written, else an empty string."""
    old = text[slice(*entry.node.span)]
    inner = old[1:-1].strip() if old[:1] in ("'", '"') else ""
    try:
        return inner if inner and repr(json.loads(inner)) == repr(value) else ""
    except ValueError:
        return ""


def _removed(text: str, mapping: Node, keys: list[str], is_json: bool) -> list[Edit]:
    entries = [mapping.entry(key) for key in keys]
    if any("&" in text[slice(*entry.span)] for entry in entries) and not is_json:
        raise UnsafeError("what is to go has an anchor that others may use")
    if mapping.flow:
        every = [entry.span for entry in mapping.entries]
        return taken_out(text, every, {every.index(entry.span) for entry in entries}, mapping.span.end - 1)
    if len(entries) == len(mapping.entries) or not all(alone(text, entry.span) for entry in entries):
        raise UnsafeError("nothing would be left of its block")
    return [Edit(line_start(text, entry.span.start), line_end(text, entry.span.end)) for entry in entries]


def _added(text: str, mapping: Node, change: Change, is_json: bool) -> Edit:
    """Return the edit that adds a key behind the last one, laid out as that is."""
    key, value = change.path[-1], _written(change.value, is_json or mapping.flow)
    key = json.dumps(key) if is_json else key
    if not mapping.entries:
        return Edit(mapping.span.end - 1, mapping.span.end - 1, f"{key}: {value}")
    last = mapping.entries[-1]
    start, newline = line_start(text, last.place.start), newline_of(text)
    indent = text[start : last.place.start]
    between = text[last.place.end : last.node.span.start] if is_json else ": "
    if mapping.flow:
        own = not indent.strip() and start
        return Edit(last.span.end, last.span.end, f",{newline + indent if own else ' '}{key}{between}{value}")
    if indent.strip():
        raise UnsafeError("its block begins behind something else")
    end = line_end(text, last.span.end)
    ended = text[:end].endswith(("\n", "\r"))
    return Edit(end, end, f"{'' if ended else newline}{indent}{key}: {value}{newline if ended else ''}")


def _written(value: Any, is_json: bool) -> str:
    if is_json:
        return json.dumps(value)
    plain = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return plain.removesuffix("...\n").strip()

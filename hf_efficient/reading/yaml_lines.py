"""The line of every key of a YAML text, keys that stand twice, and shapes that must not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

NODES = 100_000
"""A text whose aliases expand to more is an attack or an accident."""


@dataclass
class Keys:
    """Lines of keys under dotted paths; (path, first line, last line) of what stands twice; levels of nesting."""

    lines: dict[str, int] = field(default_factory=dict)
    twice: list[tuple[str, int, int]] = field(default_factory=list)
    depth: int = 0


def checked(text: str, loader: Any, *, depth: int) -> str:
    """Return what is wrong with the shape of a text, or an empty string; no recursion, so that nothing can break it."""
    sizes: dict[str, int] = {}
    stack: list[tuple[str | None, int]] = [(None, 0)]
    aliases = False
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, 1))
            if len(stack) > depth:
                raise RecursionError("nested too deeply")
            continue
        size = 1
        if isinstance(event, yaml.AliasEvent):
            aliases = True
            if any(anchor == event.anchor for anchor, _ in stack):
                return f"contains itself through its alias *{event.anchor}"
            size = sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = stack.pop()
            if anchor:
                sizes[anchor] = size
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        stack[-1] = (stack[-1][0], stack[-1][1] + size)
        if aliases and stack[-1][1] > NODES:
            return f"expands to more than {NODES} values through its aliases"
    return ""


def keys_of(node: yaml.Node | None) -> Keys:
    """Return the keys of a composed document, before its merges are carried out."""
    keys = Keys()
    stack = [(node, "", False)]
    while stack:
        current, path, merged = stack.pop()
        if isinstance(current, yaml.MappingNode):
            stack.extend(_of_mapping(current, path, keys, merged))
        elif merged and isinstance(current, yaml.SequenceNode):
            stack.extend((one, path, True) for one in reversed(current.value))
    return keys


def _of_mapping(node: yaml.MappingNode, path: str, keys: Keys, merged: bool) -> Iterator[tuple[yaml.Node, str, bool]]:
    seen: dict[str, int] = {}
    below: list[tuple[yaml.Node, str, bool]] = []
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            below.append((value, path, True))
            continue
        if not isinstance(key, yaml.ScalarNode):
            continue
        name, line = f"{path}{key.value}", key.start_mark.line + 1
        if key.value in seen and not merged:
            keys.twice.append((name, seen[key.value], line))
        seen[key.value] = line
        if not merged or name not in keys.lines:
            keys.lines[name] = line
        below.append((value, f"{name}.", merged))
    yield from below

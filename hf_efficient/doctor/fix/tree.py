"""The mappings of a JSON or YAML text, each key and value with its position."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from hf_efficient.doctor.fix.text import Span, UnsafeError

BLANK = re.compile(r"[ \t\r\n]*")
ALIAS = re.compile(r"\s*:\s*\*[^\s,\[\]{}]+")


@dataclass
class Node:
    """A value: a mapping has entries, everything else is a whole."""

    span: Span
    entries: list[Entry] = field(default_factory=list)
    mapping: bool = False
    flow: bool = True
    """Is a mapping written in braces?"""
    plain: bool = True
    """May it be replaced: no anchor, no alias, no tag?"""

    def find(self, path: tuple[str, ...]) -> Node:
        """Return the mapping under a path. Raises UnsafeError where it is not there as one of its own."""
        node = self
        for key in path:
            node = node.entry(key).node
        if not node.mapping or not node.plain:
            raise UnsafeError(f"{'.'.join(path) or 'the file'} is no mapping that stands by itself")
        return node

    def entry(self, key: str) -> Entry:
        """Return the entry of a key. Raises UnsafeError where it comes from an anchor, or stands twice."""
        found = [entry for entry in self.entries if entry.key == key]
        if len(found) != 1:
            raise UnsafeError(f"{key} {'stands twice' if found else 'comes from an anchor that others may use'}")
        return found[0]


@dataclass
class Entry:
    """A key with its value."""

    key: str
    place: Span
    """Of the key, with its quotes."""
    node: Node

    @property
    def span(self) -> Span:
        """Return where key and value stand."""
        return Span(self.place.start, self.node.span.end)


def json_tree(text: str) -> Node:
    """Return the tree of a JSON text that json.loads accepts. Raises ValueError."""
    return _json(text, _blank(text, 0))


def yaml_tree(text: str) -> Node:
    """Return the tree of a YAML text. Raises yaml.YAMLError, or UnsafeError for a text that holds nothing."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        raise UnsafeError("the file holds nothing")
    return _yaml(text, node)


def _blank(text: str, at: int) -> int:
    found = BLANK.match(text, at)
    return found.end() if found else at


def _json(text: str, at: int) -> Node:
    if text[at] != "{":
        return Node(Span(at, json.JSONDecoder().raw_decode(text, at)[1]))
    node, start = Node(Span(at, at), mapping=True), at
    at = _blank(text, at + 1)
    while text[at] != "}":
        key, end = json.JSONDecoder().raw_decode(text, at)
        value = _json(text, _blank(text, _blank(text, end) + 1))
        node.entries.append(Entry(key, Span(at, end), value))
        at = _blank(text, value.span.end)
        at = _blank(text, at + 1) if text[at] == "," else at
    node.span = Span(start, at + 1)
    return node


def _yaml(text: str, node: yaml.Node) -> Node:
    start, end = node.start_mark.index, node.end_mark.index
    made = Node(Span(start, end), plain=text[start : start + 1] not in ("&", "*", "!"))
    if isinstance(node, yaml.ScalarNode):
        made.span = Span(start, start + len(text[start:end].rstrip()))
    elif isinstance(node, yaml.MappingNode):
        made.mapping, made.flow = True, bool(node.flow_style)
        made.entries = [entry for key, value in node.value for entry in _entry(text, key, value)]
    if not getattr(node, "flow_style", True):
        made.span = Span(start, _last(text, node))
    return made


def _entry(text: str, key: yaml.Node, value: yaml.Node) -> list[Entry]:
    if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
        return []
    place = Span(key.start_mark.index, key.end_mark.index)
    alias = ALIAS.match(text, place.end)
    if alias:
        return [Entry(key.value, place, Node(Span(alias.end(), alias.end()), plain=False))]
    return [Entry(key.value, place, _yaml(text, value))]


def _last(text: str, node: Any) -> int:
    """Return where the last word of a collection in block style ends: PyYAML's own mark is at the next token."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip()) if isinstance(node, yaml.ScalarNode) else int(end)

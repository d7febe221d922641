"""The calls of a script whose names resolve, through its imports, to classes with names that have changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import metadata as meta

from hf_efficient.doctor.fix.text import NEWLINE, Span
from hf_efficient.reading.script_classes import TRL, config_fields
from hf_efficient.reading.settings import UNKNOWN

EQUAL = re.compile(r"\s*=\s*")
ARGUMENTS = re.compile(r"(transformers|sentence_transformers|trl)\.(.*\.)?\w*TrainingArguments")
TRAINER = re.compile(r"(transformers|trl)\.(.*\.)?([A-Z]\w*)?Trainer")
LOADING = re.compile(r"transformers\.(.*\.)?[A-Z]\w*\.from_(pretrained|config)")


@dataclass
class Item:
    """An argument of a call, or an entry of a dict literal."""

    name: str
    """Empty where it has none."""
    span: Span
    key: Span
    value: Span
    literal: Any
    """UNKNOWN where it is no literal."""
    entries: Listing | None = None
    """Of a value that is a dict literal."""


@dataclass
class Listing:
    """The items between two brackets."""

    items: list[Item]
    close: int
    quoted: bool
    """Are names written as strings?"""


@dataclass
class Target:
    """A call with all listings that give it names: its own arguments and the dicts unpacked into it."""

    kind: str
    """arguments, sft, trainer, loading or accelerator."""
    listings: list[Listing]
    own: frozenset[str]
    """Names that a class of the script defines itself."""
    notes: list[tuple[int, str, frozenset[str]]]
    """Dicts unpacked into it that are used elsewhere too: position, name, and their keys."""


class Reader:
    """A parsed script with positions. Raises libcst.ParserSyntaxError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.wrapper = meta.MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.names = self.wrapper.resolve(meta.QualifiedNameProvider)
        self.places = self.wrapper.resolve(meta.PositionProvider)
        self.parents = self.wrapper.resolve(meta.ParentNodeProvider)
        self.scopes = self.wrapper.resolve(meta.ScopeProvider)
        self.lines = [0, *(found.end() for found in NEWLINE.finditer(text))]
        self.nodes = list(_walk(self.wrapper.module))
        self.classes = {node.name.value: node for node in self.nodes if isinstance(node, cst.ClassDef)}
        self._dicts: dict[int, Listing] = {}

    def targets(self) -> list[Target]:
        """Return the calls whose arguments are to be looked at."""
        calls = [node for node in self.nodes if isinstance(node, cst.Call)]
        return [
            made for call in calls for kind, own in [self.kind(call)] if kind for made in [self._made(call, kind, own)]
        ]

    def kind(self, call: cst.Call) -> tuple[str, frozenset[str]]:
        """Return what a call makes, and the names that a class of the script itself gives a meaning."""
        for name in self._full(call.func):
            found, own = _kind(name), frozenset[str]()
            defined, depth = self.classes.get(name), 0
            while not found and defined is not None and depth < 20:
                own |= _own(defined)
                bases = [base for arg in defined.bases for base in self._full(arg.value)]
                found = next((kind for base in bases if (kind := _kind(base))), "")
                defined, depth = next((self.classes[b] for b in bases if b in self.classes), None), depth + 1
            if found:
                return found, own
        return "", frozenset()

    def span(self, node: cst.CSTNode) -> Span:
        """Return where a node stands."""
        place = self.places[node]
        start, end = place.start, place.end
        return Span(self.lines[start.line - 1] + start.column, self.lines[end.line - 1] + end.column)

    def _full(self, node: cst.CSTNode) -> list[str]:
        found: Any = self.names.get(node, ())
        return [one.name for one in (found() if callable(found) else found)]

    def _made(self, call: cst.Call, kind: str, own: frozenset[str]) -> Target:
        target = Target(kind, [self._arguments(call)], own, [])
        for arg in call.args:
            if arg.star != "**":
                continue
            inline = self._dict(arg.value)
            named = inline or (self._assigned(arg.value, kind) if isinstance(arg.value, cst.Name) else None)
            if isinstance(named, Listing):
                target.listings.append(named)
            elif isinstance(named, frozenset):
                target.notes.append((self.span(arg).start, getattr(arg.value, "value", ""), named))
        return target

    def _assigned(self, name: cst.Name, kind: str) -> Listing | frozenset[str] | None:
        """Return the dict literal that a name stands for, or only its keys where anything else uses it."""
        scope = self.scopes.get(name)
        found = list(scope[name.value]) if scope is not None else []
        node = getattr(found[0], "node", None) if len(found) == 1 else None
        target = self.parents.get(node) if isinstance(node, cst.Name) else None
        assign = self.parents.get(target) if isinstance(target, cst.AssignTarget) else None
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return None
        listing = self._dict(assign.value)
        if listing is None:
            return None
        uses = [self.parents.get(access.node) for access in found[0].references]
        return listing if all(self._unpacks(use, kind) for use in uses) else frozenset(i.name for i in listing.items)

    def _unpacks(self, use: Any, kind: str) -> bool:
        call = self.parents.get(use) if isinstance(use, cst.Arg) and use.star == "**" else None
        return isinstance(call, cst.Call) and self.kind(call)[0] == kind

    def _dict(self, node: cst.BaseExpression) -> Listing | None:
        if id(node) not in self._dicts:
            if isinstance(node, cst.Dict) and not node.lpar:
                self._dicts[id(node)] = self._entries(node)
            elif (
                isinstance(node, cst.Call)
                and _is_dict(self._full(node.func))
                and all(not arg.star for arg in node.args)
            ):
                self._dicts[id(node)] = self._arguments(node)
        return self._dicts.get(id(node))

    def _arguments(self, call: cst.Call) -> Listing:
        items = [self._item(arg, arg.keyword.value if arg.keyword else "", arg.keyword, arg.value) for arg in call.args]
        return Listing(items, self._close(call), False)

    def _entries(self, node: cst.Dict) -> Listing:
        items = []
        for one in node.elements:
            key = one.key if isinstance(one, cst.DictElement) else None
            plain = isinstance(key, cst.SimpleString) and not key.lpar and re.fullmatch(r"(['\"])\w+\1", key.value)
            name = key.value[1:-1] if plain and isinstance(key, cst.SimpleString) else ""
            items.append(self._item(one, name, key if plain else None, one.value))
        return Listing(items, self._close(node), True)

    def _item(self, node: cst.CSTNode, name: str, key: cst.CSTNode | None, value: cst.BaseExpression) -> Item:
        whole = self.span(node)
        at = self.span(key) if key is not None else Span(whole.start, whole.start)
        start = self.span(value).start
        if name:
            found = re.compile(r"\s*[=:]\s*").match(self.text, at.end)
            start = found.end() if found else start
        end = whole.end if isinstance(node, cst.Arg) else self._end(value)
        text = self.text[start:end]
        return Item(
            name, Span(whole.start, end), at, Span(start, end), _literal(text), self._dict(value) if name else None
        )

    def _end(self, value: cst.BaseExpression) -> int:
        """Return where an expression ends, its parentheses included."""
        end = self.span(value).end
        for paren in getattr(value, "rpar", ()):
            end = self.span(paren).end
        return end

    def _close(self, node: cst.Call | cst.Dict) -> int:
        """Return where the closing bracket of a call or dict stands."""
        return self.span(node).end - 1


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(reversed(one.children))


def _kind(name: str) -> str:
    """Return what a dotted name is: arguments, sft, trainer, loading, accelerator, or nothing of these."""
    short = name.rpartition(".")[2]
    if ARGUMENTS.fullmatch(name):
        return "arguments"
    if (
        name.startswith("trl.")
        and short.endswith("Config")
        and (short.removesuffix("Config") in TRL or config_fields(short))
    ):
        return "sft" if short == "SFTConfig" else "arguments"
    if TRAINER.fullmatch(name):
        return "trainer"
    if LOADING.fullmatch(name):
        return "loading"
    return "accelerator" if name in ("accelerate.Accelerator", "accelerate.accelerator.Accelerator") else ""


def _own(node: cst.ClassDef) -> frozenset[str]:
    """Return the names that a class gives a meaning of its own: its fields, and the parameters of its `__init__`."""
    found = set()
    for stmt in node.body.body:
        for line in getattr(stmt, "body", ()) if isinstance(stmt, cst.SimpleStatementLine) else ():
            if isinstance(line, cst.AnnAssign) and isinstance(line.target, cst.Name):
                found.add(line.target.value)
        if isinstance(stmt, cst.FunctionDef) and stmt.name.value == "__init__":
            every = [*stmt.params.params, *stmt.params.kwonly_params, *stmt.params.posonly_params]
            found |= {param.name.value for param in every}
    return frozenset(found)


def _is_dict(names: list[str]) -> bool:
    return names == ["builtins.dict"]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return UNKNOWN


def given(listings: list[Listing]) -> Mapping[str, Any]:
    """Return the names that listings give, with their literals or UNKNOWN; a dict of expressions counts by its keys."""
    found: dict[str, Any] = {}
    for listing in listings:
        for item in listing.items:
            keys = {entry.name: entry.literal for entry in item.entries.items} if item.entries else {}
            known = item.literal is not UNKNOWN or not item.entries or "" in keys
            found[item.name] = item.literal if known else keys
    return {name: value for name, value in found.items() if name}

"""Which assignments of a name can reach a place of a script: by scope, order, branches and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
MOST = 32
"""Assignments that are told apart where a name is used; with more, one of them is unknown."""
Around = tuple[ast.AST, ...]
Position = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Given:
    """What one statement gives to a name."""

    value: ast.expr | None
    """The expression; None where the statement is no simple assignment."""
    around: Around
    node: ast.AST
    """The statement."""
    at: Position
    """Where it is done; a use before that does not see it."""
    index: int | None = None
    """Which part of the expression's result, where several names are given values at once."""
    keys: tuple[str, ...] = ()
    """Of `name["a"]["b"] = value` the keys, of `name.a = value` the attributes."""
    parameter: bool = False
    """Is the name a parameter of the function `node`?"""

    @cached_property
    def branches(self) -> dict[int, tuple[ast.AST, str]]:
        """Return the branches that it is done in."""
        return branches(self.around, self.node)

    @property
    def scope(self) -> ast.AST | None:
        """Return the function that it is done in, or None for the module."""
        return self.node if self.parameter else scope_of(self.around)


class Flow:
    """The assignments of a script."""

    def __init__(self, nodes: Sequence[tuple[ast.AST, Around]]) -> None:
        self.names: dict[tuple[int, str], list[Given]] = {}
        self.parts: dict[str, list[Given]] = {}
        """Assignments to keys and attributes, by the name at their root."""
        for node, around in nodes:
            for name, given in _given(node, around):
                place = self.parts if given.keys else self.names
                key: Any = name if given.keys else (id(given.scope) if given.scope is not None else 0, name)
                place.setdefault(key, []).append(given)
        for every in self.names.values():
            every.sort(key=lambda given: given.at)

    def reaching(self, name: str, around: Around, at: Position) -> list[Given]:
        """Return what a name may have been given where it is used, the latest first; empty where it is never given."""
        scopes = [scope for scope in reversed(around) if isinstance(scope, FUNCTIONS)]
        for number, scope in enumerate([*scopes, None]):
            every = self.names.get((id(scope) if scope is not None else 0, name))
            if every:
                return _latest(every, around, at) if number == 0 else _latest(every, (), (10**9, 0))
        return []


def scope_of(around: Around) -> ast.AST | None:
    """Return the innermost function, or None for the module."""
    return next((node for node in reversed(around) if isinstance(node, FUNCTIONS)), None)


def start(node: ast.AST) -> Position:
    """Return where a node begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end(node: ast.AST) -> Position:
    """Return where a node ends."""
    return getattr(node, "end_lineno", None) or 0, getattr(node, "end_col_offset", None) or 0


def branches(around: Around, node: ast.AST) -> dict[int, tuple[ast.AST, str]]:
    """Return the branches that a node stands in, within its function: of an `if` body or orelse, a loop's body, ..."""
    first = max((i for i, one in enumerate(around) if isinstance(one, FUNCTIONS)), default=-1) + 1
    found: dict[int, tuple[ast.AST, str]] = {}
    for i in range(first, len(around)):
        outer = around[i]
        inner = around[i + 1] if i + 1 < len(around) else node
        if isinstance(
            outer, ast.If | ast.IfExp | ast.ExceptHandler | ast.match_case | ast.For | ast.While | ast.AsyncFor
        ):
            found[id(outer)] = (outer, _field(outer, inner))
    return found


def exclusive(one: dict[int, tuple[ast.AST, str]], other: dict[int, tuple[ast.AST, str]]) -> bool:
    """Do two nodes stand in branches of which only one is taken?"""
    for key, (node, field) in one.items():
        opposite = {field, other[key][1]} == {"body", "orelse"} if key in other else False
        if opposite and isinstance(node, ast.If | ast.IfExp):
            return True
    return False


def _field(outer: ast.AST, inner: ast.AST) -> str:
    for name in ("body", "orelse"):
        held = getattr(outer, name, None)
        if held is inner or (isinstance(held, list) and any(one is inner for one in held)):
            return name
    return "test"


def _latest(every: list[Given], around: Around, at: Position) -> list[Given]:
    """Return the assignments before a use, back to the last that is certain, and those that a loop brings round."""
    before = [given for given in every if given.at <= at]
    if not before:
        return every[::-1]
    use = _branches_of_use(around)
    found = [given for given in every if given.at > at and _same_loop(given, around)]
    for given in reversed(before):
        its = given.branches
        if exclusive(its, use):
            continue
        found.append(given)
        if all(key in use and use[key][1] == field for key, (_, field) in its.items()):
            break
        if len(found) > MOST:
            return [*found[:MOST], Given(None, around, given.node, at)]
    return found


def _branches_of_use(around: Around) -> dict[int, tuple[ast.AST, str]]:
    return branches(around[:-1], around[-1]) if around else {}


def _same_loop(given: Given, around: Around) -> bool:
    return any(isinstance(node, LOOPS) and any(node is other for other in given.around) for node in around)


def _given(node: ast.AST, around: Around) -> Iterator[tuple[str, Given]]:
    """Yield the names that a node gives values to."""
    if isinstance(node, FUNCTIONS):
        a = node.args
        for argument in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
            if argument is not None:
                yield argument.arg, Given(None, around, node, start(node), parameter=True)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value, node, around, end(node))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        if node.value is not None:
            yield from _pairs(node.target, node.value, node, around, end(node))
    elif isinstance(node, ast.AugAssign):
        yield from _pairs(node.target, None, node, around, end(node))
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _pairs(node.target, None, node.target, around, end(node.target))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _pairs(node.optional_vars, None, node.optional_vars, around, end(node.optional_vars))


def _pairs(
    target: ast.expr, value: ast.expr | None, node: ast.AST, around: Around, at: Position
) -> Iterator[tuple[str, Given]]:
    if isinstance(target, ast.Name):
        yield target.id, Given(value, around, node, at)
    elif isinstance(target, ast.Subscript | ast.Attribute):
        root, keys = _path(target)
        if root:
            yield root, Given(value, around, node, at, keys=keys)
    elif isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for index, part in enumerate(target.elts):
            if same and isinstance(value, ast.Tuple | ast.List):
                yield from _pairs(part, value.elts[index], node, around, at)
            elif isinstance(part, ast.Name):
                yield part.id, Given(value, around, node, at, index=index)
            else:
                yield from _pairs(part.value if isinstance(part, ast.Starred) else part, None, node, around, at)


def _path(node: ast.expr) -> tuple[str, tuple[str, ...]]:
    """Return root and keys of `root["a"].b`; a key that is no literal is `?`."""
    keys: list[str] = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute):
            keys.append(node.attr)
        else:
            literal = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            keys.append(node.slice.value if literal and isinstance(node.slice, ast.Constant) else "?")  # type: ignore[arg-type]
        node = node.value
    return (node.id, tuple(reversed(keys))) if isinstance(node, ast.Name) else ("", ())

"""The value of an expression, as far as literals and simple names say it; nothing is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hf_efficient.reading.settings import UNKNOWN


class Symbol(str):
    """A dotted name that an import stands behind, such as `torch.float16`."""

    __slots__ = ()


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true, or None where that cannot be known: what a name holds is not its text."""
    return None if value is UNKNOWN or isinstance(value, Symbol) else bool(value)


class Resolved(NamedTuple):
    """A value that is known already."""

    value: Any


class Namespace:
    """A class of the script whose body gives values to names."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        self.held = held


Names = Callable[[str], ast.expr | Symbol | Resolved | None]
"""What a name stands for where the expression is: an expression, a value, an import, or None."""

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_LIMIT = 10**18
TEXT = 10_000
"""Characters of the longest string that is put together."""
DEPTH = 40


def follow(node: ast.expr | None, names: Names, depth: int = 0) -> Any:
    """Return the value, a Symbol for what is imported, or UNKNOWN. Names are followed through simple assignments."""
    if node is None or depth > DEPTH:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | bool | None) else UNKNOWN
    for kind, read in _READERS.items():
        if isinstance(node, kind):
            return read(node, lambda child: follow(child, names, depth + 1), names)
    return UNKNOWN


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` of a chain of attributes, or an empty string. Calls in the chain count by their functions."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Name):
            return ".".join([node.id, *reversed(parts)])
        else:
            return ""


Follow = Callable[[ast.expr | None], Any]


def _name(node: Any, go: Follow, names: Names) -> Any:
    found = names(node.id)
    if isinstance(found, Resolved):
        return found.value
    return found if isinstance(found, Symbol) else go(found)


def _attribute(node: Any, go: Follow, names: Names) -> Any:
    base = go(node.value)
    if isinstance(base, Namespace):
        return base.held.get(node.attr, UNKNOWN)
    return Symbol(f"{base}.{node.attr}") if isinstance(base, Symbol) else UNKNOWN


def _sequence(node: Any, go: Follow, names: Names) -> Any:
    if any(isinstance(item, ast.Starred) for item in node.elts):
        return UNKNOWN
    return [go(item) for item in node.elts]


def _dict(node: Any, go: Follow, names: Names) -> Any:
    made: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            spread = go(value)
            if not isinstance(spread, dict):
                return UNKNOWN
            made |= spread
        elif isinstance(name := go(key), str | int | float | bool):
            made[name] = go(value)
        else:
            return UNKNOWN
    return made


def _unary(node: Any, go: Follow, names: Names) -> Any:
    value = go(node.operand)
    if isinstance(node.op, ast.Not):
        return UNKNOWN if truth(value) is None else not value
    numeric = isinstance(value, int | float)
    return -value if isinstance(node.op, ast.USub) and numeric else UNKNOWN


def _binary(node: Any, go: Follow, names: Names) -> Any:
    left, right, how = go(node.left), go(node.right), type(node.op)
    numbers = all(isinstance(value, int | float) and abs(value) < _LIMIT for value in (left, right))
    if how is ast.Pow and numbers and abs(left) <= 1000 and 0 <= right <= 12:
        return left**right
    texts = how is ast.Add and isinstance(left, str) and isinstance(right, str) and len(left) + len(right) < TEXT
    if how not in _OPERATORS or not (numbers or texts):
        return UNKNOWN
    try:
        return _OPERATORS[how](left, right)
    except (ArithmeticError, ValueError, TypeError):
        return UNKNOWN


def _compare(node: Any, go: Follow, names: Names) -> Any:
    """Return what one comparison of plain values gives."""
    left, right, how = go(node.left), go(node.comparators[0]), type(node.ops[0])
    named = [isinstance(value, Symbol) for value in (left, right)]
    if any(named) and not (all(named) and how in (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return UNKNOWN
    if len(node.ops) > 1 or not all(value is None or isinstance(value, str | int | float) for value in (left, right)):
        return UNKNOWN
    try:
        return _COMPARISONS.get(how, lambda *_: UNKNOWN)(left, right)
    except TypeError:
        return UNKNOWN


def _either(node: Any, go: Follow, names: Names) -> Any:
    test = truth(go(node.test))
    return UNKNOWN if test is None else go(node.body if test else node.orelse)


def _bool(node: Any, go: Follow, names: Names) -> Any:
    value: Any = UNKNOWN
    for part in node.values:
        value = go(part)
        if truth(value) is None:
            return UNKNOWN
        if bool(value) is isinstance(node.op, ast.Or):
            return value
    return value


def _call(node: Any, go: Follow, names: Names) -> Any:
    if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) == 2:
        base, name = go(node.args[0]), go(node.args[1])
        return Symbol(f"{base}.{name}") if isinstance(base, Symbol) and isinstance(name, str) else UNKNOWN
    if (
        isinstance(node.func, ast.Name)
        and isinstance(names(node.func.id), Resolved)
        and not (node.args or node.keywords)
    ):
        made = go(node.func)
        return made if isinstance(made, Namespace) else UNKNOWN
    if isinstance(node.func, ast.Attribute):
        return _path_call(node, go)
    called = node.func.id if isinstance(node.func, ast.Name) and names(node.func.id) is None else ""
    if called == "dict" and len(node.args) <= 1:
        values: Any = go(node.args[0]) if node.args else {}
        for keyword in node.keywords:
            more = {keyword.arg: go(keyword.value)} if keyword.arg else go(keyword.value)
            values = values | more if isinstance(values, dict) and isinstance(more, dict) else UNKNOWN
        return values if isinstance(values, dict) else UNKNOWN
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}
    if called in kinds and len(node.args) == 1 and not node.keywords:
        value = go(node.args[0])
        try:
            return kinds[called](value) if isinstance(value, str | int | float) else UNKNOWN
        except (ValueError, OverflowError):
            return UNKNOWN
    return UNKNOWN


def _path_call(node: Any, go: Follow) -> Any:
    """Return a path that os.path.join puts together."""
    called = go(node.func)
    parts = [go(arg) for arg in node.args]
    plain = bool(parts) and all(isinstance(part, str) and not isinstance(part, Symbol) for part in parts)
    return "/".join(parts)[:TEXT] if called == "os.path.join" and plain else UNKNOWN


def _subscript(node: Any, go: Follow, names: Names) -> Any:
    whole, key = go(node.value), go(node.slice)
    try:
        plain = isinstance(whole, dict) or (isinstance(whole, list) and isinstance(key, int))
        return whole[key] if plain and isinstance(key, str | int) else UNKNOWN
    except (KeyError, IndexError, TypeError):
        return UNKNOWN


def _formatted(node: Any, go: Follow, names: Names) -> Any:
    parts = [go(part.value) if isinstance(part, ast.FormattedValue) else go(part) for part in node.values]
    plain = all(isinstance(part, str | int) for part in parts)
    return "".join(map(str, parts))[:TEXT] if plain else UNKNOWN


_READERS: Mapping[type, Callable[[Any, Follow, Names], Any]] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.IfExp: _either,
    ast.BoolOp: _bool,
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.JoinedStr: _formatted,
}

"""A trick's name is the call that makes it: check the call, write it, read it back."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, signature
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, Union, get_args, get_origin, get_type_hints

from hf_efficient.trick import Trick
from hf_efficient.wording import listed, nearest

P = ParamSpec("P")


@dataclass(frozen=True)
class AtLeast:
    """The least value of a number and what it stays below, beside its type: `Annotated[float, AtLeast(0, below=1)]`."""

    value: float
    below: float = float("inf")


def spelled(make: Callable[P, Trick]) -> Callable[P, Trick]:
    """Check each call of `make` against its type hints, and name the trick that it returns by that call.

    Raises ValueError with one sentence for an argument that is missing, unknown or of a value that the hint excludes.
    """
    hints, written = get_type_hints(make, include_extras=True), signature(make)

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> Trick:
        bound = _bind(make.__name__, written, args, kwargs)
        for name, value in bound.arguments.items():
            _check(f"{make.__name__}: {name}", hints[name], value)
        return replace(make(*args, **kwargs), name=_write(make.__name__, written, bound))

    return call


def read(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Read `zero(3, offload="optimizer")` as a name, its arguments and its keywords; only literals are read.

    Raises ValueError for anything else. Nothing is executed.
    """
    wrong = ValueError(f"{text!r} is no trick or preset: write a name, such as bf16, or a call, such as zero(3).")
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, (), {}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise wrong
        if any(keyword.arg is None for keyword in node.keywords):
            raise wrong
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        return node.func.id, tuple(ast.literal_eval(argument) for argument in node.args), keywords
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        raise wrong from None


def _bind(trick: str, written: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundArguments:
    parameters = written.parameters
    for name in kwargs.keys() - parameters.keys():
        close = nearest(name, parameters)
        offer = f"did you mean {close}?" if close else f"it takes {listed(parameters) or 'none'}."
        raise ValueError(f"{trick} has no argument {name!r}: {offer}")
    try:
        bound = written.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{trick}: {error}; it takes {listed(parameters) or 'no arguments'}.") from None
    bound.apply_defaults()
    return bound


def _write(trick: str, signature: Signature, bound: BoundArguments) -> str:
    """Write the call with what differs from the defaults, by position as long as nothing is left out."""
    written, by_position = [], True
    for name, parameter in signature.parameters.items():
        value = bound.arguments[name]
        if parameter.default is not Parameter.empty and value == parameter.default:
            by_position = False
        elif by_position and parameter.kind is not Parameter.KEYWORD_ONLY:
            written.append(repr(value))
        else:
            written.append(f"{name}={value!r}")
    return f"{trick}({', '.join(written)})" if written else trick


def _check(what: str, hint: Any, value: Any) -> None:
    if not any(_fits(option, value) for option in _options(hint)):
        # the options of a Literal stand beside the others, so that one `or` is enough
        options = [o for part in _options(hint) for o in (map(repr, get_args(part)) if _is_literal(part) else [part])]
        allowed = listed([o if isinstance(o, str) else _describe(o) for o in options], "or")
        raise ValueError(f"{what} must be {allowed}, not {value!r}.")


def _is_literal(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Annotated:
        inner, limit = get_args(hint)
        # a comparison with nan is False, and nothing here is meant to be infinite
        return _fits(inner, value) and limit.value <= value < limit.below
    if _is_literal(hint):
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(hint) is list:
        return isinstance(value, list) and bool(value) and all(_fits(get_args(hint)[0], item) for item in value)
    return hint is Any or isinstance(value, hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        inner, limit = get_args(hint)
        below = f" and below {limit.below:g}" if limit.below < float("inf") else ""
        return f"{_describe(inner)} of at least {limit.value:g}{below}"
    if get_origin(hint) is list:
        return "a list that is not empty"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None"}
    return names.get(hint, str(hint))

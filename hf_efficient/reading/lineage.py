"""Where a value of a script comes from: the calls that made it and those that wrapped it on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hf_efficient.reading.flow import Around, Given, branches, start
from hf_efficient.reading.follow import dotted, truth
from hf_efficient.reading.script import Call, Script

STEPS = 400
"""Expressions looked at for one value; a script that needs more is answered with what was seen until then."""
INNER = ("model", "module", "_orig_mod", "base_model")
"""Attributes that give the model inside a wrapper."""


@dataclass
class Lineage:
    """The calls behind a value, the nearest first, and the names that it had."""

    calls: list[Call] = field(default_factory=list)
    """Makers and wrappers, in the order in which they are met going back."""
    ends: list[Call] = field(default_factory=list)
    """The calls that made it: nothing of this script stands behind them."""
    names: set[str] = field(default_factory=set)
    literals: list[tuple[ast.expr, Around]] = field(default_factory=list)
    """Expressions it may be that are no calls."""
    unknown: bool = False
    """May it come from somewhere that cannot be seen?"""


Wrapped = tuple[ast.expr, ...]


def lineage(
    script: Script,
    node: ast.expr | None,
    around: Around,
    *,
    methods: frozenset[str] | None = None,
    index: int | None = None,
) -> Lineage:
    """Return what stands behind an expression, or behind one part of its result.

    Calls of `methods` give back their receiver in another form; None means those of models.
    """
    found = Lineage()
    waiting: list[tuple[ast.expr, Around, int | None]] = [(node, around, index)] if node is not None else []
    seen: set[tuple[int, int | None]] = set()
    while waiting and len(seen) < STEPS:
        one, where, part = waiting.pop(0)
        if (id(one), part) in seen or not possible(script, where, one):
            continue
        seen.add((id(one), part))
        waiting += list(_behind(script, one, where, part, found, methods or MODEL_METHODS))
    return found


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


MODEL_METHODS = words(
    "to cuda cpu half bfloat16 float double train eval requires_grad_ compile merge_and_unload unload"
)
WRAPPERS = words(
    """get_peft_model prepare_model_for_kbit_training prepare_model_for_int8_training compile DistributedDataParallel
    DDP DataParallel FullyShardedDataParallel FSDP initialize unwrap_model prepare_model PeftModelForCausalLM
    PeftMixedModel"""
)
"""Functions whose first argument, or `model`, comes back in another form."""


def possible(script: Script, around: Around, node: ast.AST) -> bool:
    """May the node's branches be taken, as far as their conditions are known?"""
    return certain(script, around, node) is not False


def certain(script: Script, around: Around, node: ast.AST) -> bool | None:
    """Is the node surely reached within its function? None: a condition is unknown."""
    sure: bool | None = True
    for outer, which in branches(around, node).values():
        if isinstance(outer, ast.If | ast.IfExp) and which in ("body", "orelse"):
            test = truth(script.value(outer.test, around[: around.index(outer) + 1]))
            if test is None:
                sure = sure if which == "body" and _is_main(outer.test) else None
            elif test is not (which == "body"):
                return False
        elif isinstance(outer, ast.ExceptHandler | ast.match_case):
            sure = None
    return sure


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _behind(
    script: Script, node: ast.expr, around: Around, index: int | None, found: Lineage, methods: frozenset[str]
) -> Iterator[tuple[ast.expr, Around, int | None]]:
    inner = (*around, node)
    if isinstance(node, ast.Name):
        found.names.add(node.id)
        yield from _named(script, node, around, index, found)
    elif isinstance(node, ast.IfExp):
        yield from ((one, inner, index) for one in (node.body, node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from ((one, inner, index) for one in node.values)
    elif isinstance(node, ast.NamedExpr | ast.Await):
        yield node.value, inner, index
    elif isinstance(node, ast.Attribute):
        yield from _attribute(script, node, around, found)
    elif isinstance(node, ast.Tuple | ast.List) and index is not None and index < len(node.elts):
        yield node.elts[index], inner, None
    elif isinstance(node, ast.Call):
        yield from _call(script, node, around, index, found, methods)
    elif isinstance(node, ast.Subscript) and "__getitem__" in methods:
        yield node.value, inner, None
    else:
        found.literals.append((node, around))


def _named(
    script: Script, node: ast.Name, around: Around, index: int | None, found: Lineage
) -> Iterator[tuple[ast.expr, Around, int | None]]:
    reaching = script.flow.reaching(node.id, around, start(node))
    if not reaching:
        found.unknown = True
    for given in reaching:
        if given.parameter:
            passed = script.argument(given, node.id)
            found.unknown |= not passed
            yield from ((one, where, index) for one, where in passed)
        elif given.value is None:
            found.unknown = True
        else:
            yield given.value, (*given.around, given.node), given.index if given.index is not None else index


def _attribute(
    script: Script, node: ast.Attribute, around: Around, found: Lineage
) -> Iterator[tuple[ast.expr, Around, int | None]]:
    name = dotted(node)
    root, _, rest = name.partition(".")
    given = [one for one in script.flow.parts.get(root, ()) if ".".join(one.keys) == rest and one.value is not None]
    if given and not isinstance(node.value, ast.Call):
        found.names.add(name)
        yield from _attribute_values(given)
    elif node.attr in INNER:
        yield node.value, (*around, node), None
    else:
        found.literals.append((node, around))


def _attribute_values(every: list[Given]) -> Iterator[tuple[ast.expr, Around, int | None]]:
    for given in every:
        if given.value is not None:
            yield given.value, (*given.around, given.node), given.index


def _call(
    script: Script, node: ast.Call, around: Around, index: int | None, found: Lineage, methods: frozenset[str]
) -> Iterator[tuple[ast.expr, Around, int | None]]:
    call = script.call_at[id(node)]
    found.calls.append(call)
    inner = (*around, node)
    function = script.functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if function is not None:
        returned = returns(script, function)
        found.unknown |= not returned
        yield from ((one, where, index) for one, where in returned)
    elif call.method == "prepare" and isinstance(node.func, ast.Attribute):
        position = index if index is not None else 0
        plain = position < len(node.args) and not isinstance(node.args[position], ast.Starred)
        found.unknown |= not plain
        if plain:
            yield node.args[position], inner, None
    elif isinstance(node.func, ast.Attribute) and call.method in methods and not _module(script, node.func):
        yield node.func.value, inner, None
    elif (wrapped := _wrapped(call, index)) is not None:
        yield wrapped, inner, None
    else:
        found.ends.append(call)


def _module(script: Script, node: ast.Attribute) -> bool:
    """Is this a function of an imported module, such as torch.compile?"""
    root = dotted(node).partition(".")[0]
    return root in script.imports and not isinstance(node.value, ast.Call)


def _wrapped(call: Call, index: int | None) -> ast.expr | None:
    """Return the argument that a wrapper gives back in another form."""
    adapter = call.method == "from_pretrained" and call.receiver.rpartition(".")[2].startswith("PeftM")
    if (call.method not in WRAPPERS and not adapter) or (call.method == "initialize" and index not in (None, 0)):
        return None
    position = 1 if call.method == "initialize" else 0
    first = call.node.args[position] if len(call.node.args) > position else None
    return call.expressions.get("model", call.expressions.get("module", first))


def returns(script: Script, function: ast.FunctionDef) -> list[tuple[ast.expr, Around]]:
    """Return the expressions that a function returns, with what stands around each."""
    found = []
    for node, around in script.nodes:
        if isinstance(node, ast.Return) and node.value is not None and function in around:
            inner = next((one for one in reversed(around) if isinstance(one, ast.FunctionDef | ast.Lambda)), None)
            if inner is function:
                found.append((node.value, (*around, node)))
    return found


def argument(call: Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the expression of a keyword, or of the argument at a position."""
    if name in call.expressions:
        return call.expressions[name]
    plain = position is not None and not any(isinstance(arg, ast.Starred) for arg in call.node.args)
    return call.node.args[position] if plain and position is not None and position < len(call.node.args) else None


def inside(call: Call) -> Around:
    """Return what stands around the arguments of a call."""
    return (*call.around, call.node)

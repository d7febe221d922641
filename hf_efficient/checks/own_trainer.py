"""The Trainer that a script builds: its class, what the script overrides in it, and the loss it computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from hf_efficient.checks.loss_calls import ITEMS
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import UNKNOWN

STOCK = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
"""Trainers whose loss is scaled by what the model or compute_loss_func does; trl's other ones say it themselves."""
Function = ast.FunctionDef | ast.Lambda


class Built(NamedTuple):
    """One `Trainer(...)` of a script: the call, the script's own classes nearest first, and the library's class."""

    call: Call
    own: tuple[ast.ClassDef, ...]
    base: str
    """Dotted, through the imports: `transformers.Trainer`."""

    @property
    def stock(self) -> bool:
        """Say whether the library's class leaves the scaling of the loss to model and compute_loss_func."""
        return self.base.rpartition(".")[2] in STOCK

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return the method as the nearest of the script's own classes defines it."""
        parts = (part for node in self.own for part in node.body)
        return next((part for part in parts if isinstance(part, ast.FunctionDef) and part.name == name), None)


def built(script: Script) -> list[Built]:
    """Return every Trainer that the script builds, of the library's classes or of its own made from them."""
    found = [(call, _lineage(script, call.name)) for call in script.calls]
    return [Built(call, own, base) for call, (own, base) in found if base.rpartition(".")[2].endswith("Trainer")]


def _lineage(script: Script, name: str) -> tuple[tuple[ast.ClassDef, ...], str]:
    own: list[ast.ClassDef] = []
    while name in script.classes and len(own) < 8:
        node = script.classes[name]
        own.append(node)
        bases = [script.full_name(dotted(base)) for base in node.bases]
        trainers = [base for base in bases if base.rpartition(".")[2].endswith("Trainer") or base in script.classes]
        name = trainers[-1] if len(trainers) == 1 else ""
    library = name.partition(".")[0] in ("transformers", "trl")
    return tuple(own), name if library else ""


def assigned(script: Script, attribute: str) -> Any:
    """Return what the script gives an attribute, in a class body or of an object; None: nothing, UNKNOWN: unclear."""
    values = [
        node.value.value if isinstance(node.value, ast.Constant) else UNKNOWN
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if dotted(target).rpartition(".")[2] == attribute
    ]
    if any(isinstance(node, ast.Constant) and node.value == attribute for node in ast.walk(script.tree)):
        return UNKNOWN  # setattr and the like
    return values[0] if values and all(value is values[0] for value in values) else (UNKNOWN if values else None)


def loss_function(script: Script, call: Call) -> Function | None:
    """Return the function that a Trainer was given as compute_loss_func, where the script defines it."""
    given = next((keyword.value for keyword in call.node.keywords if keyword.arg == "compute_loss_func"), None)
    return _function(script, given, call, 0) if given is not None else None


def _function(script: Script, node: ast.expr, call: Call, depth: int) -> Function | None:
    if isinstance(node, ast.Lambda):
        return node
    if isinstance(node, ast.Call) and depth < 4:
        name = script.full_name(dotted(node.func))
        if name.rpartition(".")[2] == "partial" and node.args:
            return _function(script, node.args[0], call, depth + 1)
        return script.functions.get(f"{name}.__call__") or script.functions.get(f"{name}.forward")
    if isinstance(node, ast.Attribute):
        return script.functions.get(dotted(node))
    if isinstance(node, ast.Name):
        if node.id in script.functions:
            return script.functions[node.id]
        values = list(_values(script, node.id))
        return _function(script, values[0], call, depth + 1) if len(values) == 1 and depth < 4 else None
    return None


def _values(script: Script, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            yield node.value


def takes_items(function: Function) -> bool:
    """Say whether the function can be called with num_items_in_batch=."""
    arguments = function.args
    return arguments.kwarg is not None or ITEMS in [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]


def uses_items(function: Function) -> bool:
    """Say whether the function reads num_items_in_batch, or hands on the keywords that hold it."""
    rest = function.args.kwarg.arg if function.args.kwarg else ""
    named = ITEMS in [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
    for node in _read(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == (ITEMS if named else rest):
            return True
    return False


def _read(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without assignments to `_` and without prints and logs."""
    body = function.body if isinstance(function.body, list) else [function.body]
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        thrown = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_"
        told = isinstance(node, ast.Call) and dotted(node.func).split(".")[0] in ("print", "logger", "logging")
        if not thrown and not told:
            yield node
            stack.extend(ast.iter_child_nodes(node))


def divides_by_items(function: Function) -> bool:
    """Say whether the function divides something by num_items_in_batch."""
    for node in ast.walk(function):
        right = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
        if right is not None and isinstance(getattr(node, "op", None), ast.Div) and _names(right, ITEMS):
            return True
    return False


def is_mean(function: Function) -> bool:
    """Say whether the function returns a mean over its own batch, as far as its text shows."""
    text = list(ast.walk(function))
    own = any(isinstance(node, ast.Attribute | ast.Constant | ast.Name) and _says_steps(node) for node in text)
    sums = any(
        isinstance(node, ast.keyword)
        and node.arg == "reduction"
        and (not isinstance(node.value, ast.Constant) or node.value.value == "sum")
        for node in text
    )
    divides = any(isinstance(getattr(node, "op", None), ast.Div) for node in text)
    means = any(isinstance(node, ast.Attribute) and node.attr in ("mean", "nanmean") for node in text)
    return not own and (not sums or divides or means)


def _says_steps(node: ast.AST) -> bool:
    word = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
    return isinstance(word, str) and ("accumulation" in word or word in ("gas", "grad_accum"))


def speaks_of_labels(function: Function) -> bool:
    """Say whether the function reads the batch's "labels", or takes the loss that the model makes of them."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and node.value in ("labels", "loss"):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("loss", "compute_loss"):
            return True
    return False


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))

"""Whether a forward's loss divides by num_items_in_batch: the calls in it that take labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

ITEMS = "num_items_in_batch"
SHAPING = {"pad", "where", "cat", "stack", "roll", "clone", "isinstance", "len", "masked_fill", "one_hot", "full_like"}
"""Functions that make labels of labels."""
SHIFTING = {"_shift_right", "shift_tokens_right", "prepare_decoder_input_ids_from_labels"}
"""Functions that make inputs of labels."""


def loss_verdict(forward: ast.FunctionDef, *, loss_uses: bool | None) -> bool | None:
    """Say whether the loss divides by num_items_in_batch; None where that is not known.

    `loss_uses` says the same of `self.loss_function`. A loss of two parts that differ is not known.
    """
    if any(_mentions(node) for node in ast.walk(forward)):
        return _by_name(forward, loss_uses)
    verdicts = {_of_call(call, forward, loss_uses) for call in label_calls(forward)}
    return verdicts.pop() if len(verdicts) == 1 else None


def _mentions(node: ast.AST) -> bool:
    named = isinstance(node, ast.Name) and node.id == ITEMS
    return named or (isinstance(node, ast.Constant) and node.value == ITEMS)


def _by_name(forward: ast.FunctionDef, loss_uses: bool | None) -> bool | None:
    """Judge a forward that reads the number by its name: it uses it where it hands it to its loss function."""
    handed = [call for call in label_calls(forward) if any(_mentions(part) for part in ast.walk(call))]
    own = [call for call in handed if ast.unparse(call.func) == "self.loss_function"]
    return True if own and loss_uses and len(own) == len(label_calls(forward)) else None


def _of_call(call: ast.Call, forward: ast.FunctionDef, loss_uses: bool | None) -> bool | None:
    name = ast.unparse(call.func)
    spread = [keyword.value for keyword in call.keywords if keyword.arg is None]
    kwargs = forward.args.kwarg.arg if forward.args.kwarg else ""
    if name == "self.loss_function":
        passes = any(isinstance(value, ast.Name) and value.id == kwargs for value in spread)
        return loss_uses if passes else (None if spread else False)
    return None if spread else False


def label_calls(forward: ast.FunctionDef) -> list[ast.Call]:
    """Return the calls that take labels, other than those that only shape them."""
    names = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs) if argument.arg == "labels"}
    for _ in range(2):  # a second round for names that are given before what they are made of, as in loops
        for node in ast.walk(forward):
            if isinstance(node, ast.Assign) and _is_labels(node.value, names):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call)]
    return [call for call in calls if _takes(call, names) and not _shapes(call, names)]


def _takes(call: ast.Call, names: set[str]) -> bool:
    return any(_is_labels(value, names) for value in _arguments(call))


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from (argument.value if isinstance(argument, ast.Starred) else argument for argument in call.args)
    yield from (keyword.value for keyword in call.keywords)


def _shapes(call: ast.Call, names: set[str]) -> bool:
    last = ast.unparse(call.func).rpartition(".")[2]
    method = isinstance(call.func, ast.Attribute) and _is_labels(call.func.value, names)
    return method or last in SHAPING or last in SHIFTING or last.endswith("Output") or last.startswith("logger")


def _is_labels(node: ast.expr, names: set[str]) -> bool:
    """Is the expression labels, or labels in another shape?"""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute | ast.Subscript):
        return node.value is not None and _is_labels(node.value, names)
    if isinstance(node, ast.Call):
        last = ast.unparse(node.func).rpartition(".")[2]
        method = isinstance(node.func, ast.Attribute) and _is_labels(node.func.value, names)
        return method or (last in SHAPING and any(_is_labels(value, names) for value in _arguments(node)))
    if isinstance(node, ast.IfExp):
        return _is_labels(node.body, names) or _is_labels(node.orelse, names)
    return False

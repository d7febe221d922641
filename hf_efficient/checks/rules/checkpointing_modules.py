"""torch.utils.checkpoint called by modules of one's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script

KNOWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")

SEQUENTIAL = "torch.utils.checkpoint.checkpoint_sequential"


def checkpoints(script: Script) -> list[Call]:
    """Return the calls of torch.utils.checkpoint.checkpoint."""
    return [call for call in script.named("checkpoint") if call.name == "torch.utils.checkpoint.checkpoint"]


def is_reentrant(call: Call) -> bool:
    """Is the call surely of the reentrant variant: asked for, or left out?"""
    value: Any = call.keywords.get("use_reentrant")
    return not call.open and (value is True or value is None)


def frozen_names(script: Script) -> set[str]:
    """Return the attributes (`embed` of `self.embed`, `model.embed`) whose parameters the script freezes."""
    frozen: set[str] = set()
    freed: set[str] = set()
    for call in script.named("requires_grad_"):
        value = call.args[0] if call.args else call.keywords.get("requires_grad", True)
        names = {_attribute(call.receiver), *_assigned_to(script, call.node), *_walked(call)}
        (frozen if value is False else freed).update(names)
    for call in script.named("Embedding.from_pretrained"):
        if call.keywords.get("freeze", True) is True and len(call.args) < 2:
            frozen |= _assigned_to(script, call.node)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if target.attr == "requires_grad":
                value = script.value(node.value)
                names = {_attribute(dotted(target.value)), *_loop_over(script, node)}
                (frozen if value is False else freed).update(names)
    return (frozen - freed) - {""}


def _attribute(name: str) -> str:
    """Return the part of a model that a dotted name is: `embed` of `self.embed.weight`."""
    parts = [part for part in name.split(".")[1:] if part not in ("weight", "bias", "model", "module", "parameters")]
    return parts[-1] if parts else ""


def _assigned_to(script: Script, node: ast.AST) -> set[str]:
    found = set()
    for statement in ast.walk(script.tree):
        if isinstance(statement, ast.Assign) and statement.value is node:
            found |= {_attribute(dotted(t)) for t in statement.targets if isinstance(t, ast.Attribute)}
    return found


def _walked(call: Call) -> set[str]:
    """Return the part whose parameters the loop around a call walks over."""
    loops = [loop for loop in call.loops if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)]
    return {_attribute(dotted(loop.iter)) for loop in loops if dotted(loop.iter).endswith(".parameters")}


def _loop_over(script: Script, node: ast.AST) -> set[str]:
    found = set()
    for loop in ast.walk(script.tree):
        if isinstance(loop, ast.For) and node in ast.walk(loop) and dotted(loop.iter).endswith(".parameters"):
            found.add(_attribute(dotted(loop.iter)))
    return found


def _without_gradient(function: ast.AST, frozen: set[str], line: int) -> set[str]:
    """Return the names that hold, at a line of a function, the output of frozen parts alone."""
    held: set[str] = set()
    statements = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.With | ast.Expr)]
    for node in sorted(statements, key=lambda one: one.lineno):
        if node.lineno >= line:
            break
        if isinstance(node, ast.With) and any(dotted(item.context_expr).endswith("no_grad") for item in node.items):
            inner = [one for one in ast.walk(node) if isinstance(one, ast.Assign)]
            held |= {target.id for one in inner for target in one.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Expr) and dotted(node.value).endswith(".requires_grad_"):
            held.discard(dotted(node.value).partition(".")[0])
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if _is_frozen(node.value, frozen, held):
                held.add(name)
            elif not _in_no_grad(function, node):
                held.discard(name)
    return held


def _in_no_grad(function: ast.AST, node: ast.AST) -> bool:
    blocks = [one for one in ast.walk(function) if isinstance(one, ast.With)]
    quiet = [one for one in blocks if any(dotted(item.context_expr).endswith("no_grad") for item in one.items)]
    return any(node in ast.walk(one) for one in quiet)


def _is_frozen(node: ast.expr, frozen: set[str], held: set[str]) -> bool:
    """Does the expression come from frozen parts only?"""
    if isinstance(node, ast.Name):
        return node.id in held
    if isinstance(node, ast.BinOp):
        return _is_frozen(node.left, frozen, held) and _is_frozen(node.right, frozen, held)
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        if name.endswith(".requires_grad_"):
            return False
        if name.startswith("self.") and name.count(".") == 1:
            return name.removeprefix("self.") in frozen
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        return inner is not None and _is_frozen(inner, frozen, held)
    return False


@check({"torch": ">=2.0"}, seen="ran on CPU")
def reentrant_checkpoint_of_frozen_layer_output(script: Script) -> Iterator[Finding]:
    """Find a module of one's own that checkpoints, reentrantly, what comes out of a frozen layer.

    torch.utils.checkpoint.checkpoint with use_reentrant=True, or without use_reentrant (torch 2.13 still takes that for
    True and warns), builds no graph where no input requires a gradient: the blocks inside get none and stay untrained
    ("None of the inputs have requires_grad=True"). A frozen embedding, or features made under torch.no_grad(), are such
    inputs. use_reentrant=False has no such condition. Not meant: inputs on which the script calls requires_grad_().
    """
    frozen = frozen_names(script)
    for call in [*checkpoints(script), *script.named(SEQUENTIAL)]:
        function = next((node for node in reversed(call.around) if isinstance(node, ast.FunctionDef)), None)
        inputs = call.node.args[2 if call.method == "checkpoint_sequential" else 1 :]
        if function is None or not is_reentrant(call) or not inputs or _of_frozen(call, frozen):
            continue
        held = _without_gradient(function, frozen, call.place.line)
        if all(_is_frozen(arg, frozen, held) for arg in inputs):
            yield error(
                f"{call.text}: its input comes from frozen layers only",
                why="In the reentrant variant no input requires a gradient then, so the checkpointed block gets"
                " none and stays"
                " untrained, with one warning.",
                fix="Pass use_reentrant=False, or call requires_grad_() on the input before the first checkpoint.",
                at=call.place,
            )


def _of_frozen(call: Call, frozen: set[str]) -> bool:
    """Is what is checkpointed itself frozen, so that no gradient is wanted?"""
    first = ast.unparse(call.node.args[0])
    loops = {ast.unparse(loop.target): dotted(loop.iter) for loop in call.loops if isinstance(loop, ast.For)}
    return _attribute(loops.get(first, first)) in frozen


@check({"torch": ">=2.4"}, seen="ran on CPU")
def checkpoint_without_use_reentrant(script: Script) -> Iterator[Finding]:
    """Find torch.utils.checkpoint called without use_reentrant.

    The default is still the reentrant variant. torch 2.13 warns and says that leaving it out will be an error; it
    takes no keyword arguments for the function, gives no gradient where no input requires one, and fails under DDP's
    search for unused parameters.
    """
    calls = [*checkpoints(script), *script.named(SEQUENTIAL)]
    for call in calls:
        if not call.open and "use_reentrant" not in call.keywords:
            yield info(
                f"{call.method}(...) without use_reentrant",
                why="It takes the reentrant variant and warns; releases to come will raise.",
                fix="Pass use_reentrant=False.",
                at=call.place,
            )


@check({"torch": ">=2.0"}, seen="ran on CPU")
def reentrant_checkpoint_with_keywords(script: Script) -> Iterator[Finding]:
    """Find reentrant checkpointing that is given keyword arguments, which it refuses.

    torch.utils.checkpoint.checkpoint passes keywords on to the function only with use_reentrant=False; else it raises
    ValueError ("Unexpected keyword arguments"), and likewise for context_fn and debug.
    """
    for call in checkpoints(script):
        wrong = [key for key in call.keywords if key not in KNOWN or key in ("context_fn", "debug")]
        if is_reentrant(call) and wrong:
            yield error(
                f"{call.method}(...) of the reentrant variant with the keyword {', '.join(wrong)}",
                why="torch raises ValueError: keyword arguments reach the function only with use_reentrant=False.",
                fix="Pass use_reentrant=False, or pass the values by position.",
                at=call.place,
            )

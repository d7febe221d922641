"""A hand-written training loop: who runs backward, what the loss is divided by, when the optimizer steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script

STEPS_WORD = re.compile(r"accum|\bgas\b|\bga\b|grad_acc", re.IGNORECASE)
"""What a name of a number of accumulation steps looks like."""
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


@dataclass(frozen=True)
class Loop:
    """One innermost loop that calls backward."""

    script: Script
    node: ast.AST

    @cached_property
    def calls(self) -> list[Call]:
        """Return the calls inside it, those of nested functions left out."""
        return [call for call in self.script.inside(self.node) if self.node in call.loops]

    def of(self, *methods: str) -> list[Call]:
        """Return the calls of these methods."""
        return [call for call in self.calls if call.method in methods]

    @cached_property
    def backward(self) -> Call:
        """Return its first call of backward."""
        return self.of("backward")[0]

    @cached_property
    def kind(self) -> str:
        """Return who runs backward: accelerator, engine, scaler or torch; empty: unknown."""
        return kind_of(self.script, self.backward)

    @cached_property
    def optimizer_steps(self) -> list[Call]:
        """Return the calls of an optimizer's step, through a GradScaler too."""
        return [call for call in self.of("step") if _is_optimizer(self.script, call)]

    @cached_property
    def accumulates(self) -> bool:
        """Say whether backward stands in accelerate's accumulate()."""
        return any("accumulate(" in context for context in self.backward.contexts)

    def modulo(self, call: Call) -> ast.expr | None:
        """Return n of an `if (step + 1) % n == 0` around a call, or None."""
        for node in call.around:
            if isinstance(node, ast.If) and self.node in call.around and node is not self.node:
                for part in ast.walk(node.test):
                    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                        return part.right
        return None

    def divisors(self) -> list[ast.expr]:
        """Return what the loss is divided by on its way into backward."""
        node = self.backward.node
        loss = node.args[0] if node.args else None
        if self.kind in ("torch", "scaler") and isinstance(node.func, ast.Attribute):
            loss = node.func.value
            if isinstance(loss, ast.Call) and self.kind == "scaler":
                loss = loss.args[0] if loss.args else None
        return list(self._divisors(loss, 0)) if loss is not None else []

    def _divisors(self, node: ast.AST, depth: int) -> Iterator[ast.expr]:
        if depth > 6:
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node.right
            yield from self._divisors(node.left, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.left, node.right):
                inverse = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Div)
                if inverse and isinstance(side.left, ast.Constant):  # type: ignore[attr-defined]
                    yield side.right  # type: ignore[attr-defined]
                else:
                    yield from self._divisors(side, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self._divisors(node.left, depth + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("div", "div_", "divide", "true_divide") and node.args:
                yield node.args[0]
            yield from self._divisors(node.func.value, depth + 1)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._assigned(dotted(node), depth)

    def _assigned(self, name: str, depth: int) -> Iterator[ast.expr]:
        """Yield the divisors in what this loop gives a name."""
        for node in ast.walk(self.node):
            given = isinstance(node, ast.Assign) and any(dotted(target) == name for target in node.targets)
            if isinstance(node, ast.Assign) and given and dotted(node.value) != name:
                yield from self._divisors(node.value, depth + 2)
            if isinstance(node, ast.AugAssign) and dotted(node.target) == name and isinstance(node.op, ast.Div):
                yield node.value

    def worth(self, node: ast.expr) -> Any:
        """Return an expression's value where it stands in this loop."""
        return self.script.value(node, self.backward.around)

    def before(self, one: Call, other: Call) -> bool:
        """Say whether a call ends before another begins in the text."""
        return (one.node.end_lineno, one.node.end_col_offset) < (other.node.lineno, other.node.col_offset)


def loops(script: Script) -> list[Loop]:
    """Return the innermost loops that call backward."""
    return [Loop(script, node) for node in script.training_loops]


def kind_of(script: Script, call: Call) -> str:
    """Return who runs a backward: accelerator, engine, scaler or torch; empty: unknown."""
    receiver = call.receiver
    made = script.made(receiver)
    last = receiver.rpartition(".")[2].lower()
    if made is not None and made.method == "Accelerator":
        return "accelerator"
    if receiver in engines(script):
        return "engine"
    if made is None and last in ("accelerator", "_accelerator"):
        return "accelerator"
    if re.search(r"scale[r]?\.scale$", receiver):
        return "scaler"
    lossy = not receiver or "loss" in receiver.lower() or not call.node.args
    return "torch" if lossy else ""


def engines(script: Script) -> set[str]:
    """Return the names that hold an engine of deepspeed.initialize."""
    return {names[0] for names in _initialized(script) if names and names[0]}


def engine_optimizers(script: Script) -> set[str]:
    """Return the names that hold an optimizer of deepspeed.initialize."""
    return {names[1] for names in _initialized(script) if len(names) > 1} - {"", "_"}


def _initialized(script: Script) -> Iterator[list[str]]:
    """Yield the names that the results of deepspeed.initialize are given."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = node.targets[0]
            if script.full_name(dotted(node.value.func)) == "deepspeed.initialize":
                yield [dotted(part) for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])]


def _is_optimizer(script: Script, call: Call) -> bool:
    if call.receiver in engines(script):
        return False
    last = call.receiver.rpartition(".")[2].lower()
    scaled = "scaler" in last and bool(call.node.args)
    return (
        scaled
        or bool(re.match(r"(.*_)?opt(im(izer)?)?(_.*|\d+|[dg])?$", last))
        or last.endswith(("optimizer", "optim"))
    )


def is_scheduler(call: Call) -> bool:
    """Say whether `X.step()` steps a scheduler, by X's name."""
    last = call.receiver.rpartition(".")[2].lower()
    return "sched" in last


def prepared(script: Script) -> dict[str, Call]:
    """Return the names that were handed to accelerator.prepare (or prepare_...), with the call."""
    found: dict[str, Call] = {}
    for call in script.calls:
        made = script.made(call.receiver)
        own = made is not None and made.method == "Accelerator"
        if call.method.startswith("prepare") and (own or "accelerator" in call.receiver.lower()):
            for argument in call.node.args:
                name = dotted(argument)
                if name:
                    found[name] = call
    return found


def prepared_inline(script: Script, call: Call) -> str:
    """Return the name that `accelerator.prepare(get_scheduler(...))` gives its result, or an empty string."""
    outer = script.call_at.get(id(call.around[-1])) if call.around else None
    if outer is None or not outer.method.startswith("prepare") or not isinstance(outer.node.func, ast.Attribute):
        return ""
    parent = outer.around[-1] if outer.around else None
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    names = getattr(targets[0], "elts", targets) if targets else []
    position = outer.node.args.index(call.node) if call.node in outer.node.args else len(names)
    return dotted(names[position]) if position < len(names) else ""


def steps_word(node: ast.expr) -> bool:
    """Say whether an expression reads like a number of accumulation steps."""
    return bool(STEPS_WORD.search(ast.unparse(node)))

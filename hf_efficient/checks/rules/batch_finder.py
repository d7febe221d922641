"""Mistakes of accelerate's batch finder in loops of one's own: find_executable_batch_size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from hf_efficient.checks.check import check
from hf_efficient.checks.loop import steps_word
from hf_efficient.checks.rules.compile import compiled, sizes
from hf_efficient.checks.rules.loops import accumulation
from hf_efficient.finding import Finding, Place, info, warning
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Script
from hf_efficient.reading.setup import Setup

FINDER = "find_executable_batch_size"


class Searched(NamedTuple):
    """A function that the finder calls with smaller and smaller batches."""

    function: ast.FunctionDef
    start: Any
    """starting_batch_size; 128 where it is not given, UNKNOWN where it cannot be known."""
    place: Place

    @property
    def tried(self) -> str:
        """Return the sizes that are tried, or an empty string."""
        return " -> ".join(map(str, sizes(self.start))) if isinstance(self.start, int) and self.start > 0 else ""


def searched(script: Script) -> Iterator[Searched]:
    """Yield the functions under find_executable_batch_size, as a decorator or as its argument."""
    for call in script.calls:
        if call.method != FINDER:
            continue
        start = call.keywords.get("starting_batch_size", 128)
        parent = call.around[-1] if call.around else None
        named = call.node.args[0] if call.node.args else None
        found = parent if isinstance(parent, ast.FunctionDef) and call.node in parent.decorator_list else None
        function = found or script.functions.get(dotted(named) if named is not None else "")
        if function is not None:
            yield Searched(function, start, call.place)
    for function in script.functions.values():
        if any(
            isinstance(one, ast.Name | ast.Attribute) and _is_finder(script, one) for one in function.decorator_list
        ):
            yield Searched(function, 128, script.place(function))


def _is_finder(script: Script, node: ast.expr) -> bool:
    return script.full_name(dotted(node)).rpartition(".")[2] == FINDER


def _adjusts(function: ast.FunctionDef) -> bool:
    """Does the function make its accumulation from the batch size?"""
    size = function.args.args[0].arg if function.args.args else ""
    for node in ast.walk(function):
        divisor = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv) else None
        if divisor is not None and any(isinstance(part, ast.Name) and part.id == size for part in ast.walk(divisor)):
            return True
        if isinstance(node, ast.Assign) and any(steps_word(target) for target in node.targets):
            return True
    return False


@check({"accelerate": ">=1.10"}, seen="read source")
def batch_finder_keeps_accumulation(setup: Setup, script: Script) -> Iterator[Finding]:
    """Find find_executable_batch_size in a loop whose accumulation does not follow the batch size.

    After an out-of-memory error the finder calls the function again with int(size * 0.9) (accelerate, utils/memory.py;
    half the size before 1.10). gradient_accumulation_steps stays, so the effective batch, and with it what the
    learning rate was chosen for, becomes whatever the card decides. Not said where the function computes its
    accumulation from the batch size.
    """
    count = accumulation(setup.effective)
    for one in searched(script):
        if _adjusts(one.function):
            continue
        several = isinstance(count, int) and count > 1
        tell = warning if several else info
        steps = f" with gradient_accumulation_steps={count}" if several else ""
        whole = isinstance(one.start, int) and several
        sums = (
            f": {one.start * count} per process at first, {int(one.start * 0.9) * count} after one failure"
            if whole
            else ""
        )
        yield tell(
            f"{FINDER}(starting_batch_size={one.start}){steps}",
            why=f"The finder tries {one.tried or 'smaller and smaller sizes'} after out-of-memory errors, and "
            f"accumulation stays: the effective batch is what fits the card{sums}.",
            fix="Compute it inside the function: gradient_accumulation_steps = target // batch_size; or find the size "
            "once, and write batch size and accumulation out.",
            at=one.place,
        )


@check({"accelerate": ">=1.10", "torch": ">=2.0"}, seen="read source")
def batch_finder_around_compilation(setup: Setup, script: Script) -> Iterator[Finding]:
    """Find find_executable_batch_size around a loop whose model is compiled.

    Each size that is tried is a new shape and, as the function makes its model anew, a new compilation (and a new CUDA
    graph in the modes that record them); a try that fails has cost its compilation.
    """
    asked = compiled(setup)
    for one in searched(script) if asked is not None else ():
        yield warning(
            f"{FINDER} with {asked[0] if asked else ''}",
            why=f"Each batch size that is tried is compiled again{f': {one.tried} ...' if one.tried else ''}.",
            fix="Find the batch size once without torch.compile, write it out, and compile then.",
            at=one.place,
        )

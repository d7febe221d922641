"""Mistakes in learning rate schedules: their length in ticks, and what a kind of schedule needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from hf_efficient.checks.check import check
from hf_efficient.checks.knob import Knob
from hf_efficient.checks.loop import Loop, loops, prepared, prepared_inline
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings

LENGTHS = {
    "OneCycleLR": "total_steps",
    "CosineAnnealingLR": "T_max",
    "LinearLR": "total_iters",
    "PolynomialLR": "total_iters",
}
POSITIONS = {"get_scheduler": 3, "get_linear_schedule_with_warmup": 2, "CosineAnnealingLR": 1}
NEEDED = {
    "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
    "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
    "warmup_stable_decay": ("num_decay_steps",),
}
"""Kinds of schedule and the keyword of which they need one, seen in transformers 5.24, optimization.py."""


class Length(NamedTuple):
    """The expression of a schedule's length, and all that it is made of."""

    call: Call
    text: str
    parts: tuple[ast.expr, ...]


def lengths(script: Script) -> Iterator[Length]:
    """Yield every schedule that is made with a length."""
    for call in script.calls:
        hub = call.method == "get_scheduler" or (call.method.startswith("get_") and "_schedule" in call.method)
        if not hub and call.method not in LENGTHS:
            continue
        key = LENGTHS.get(call.method, "num_training_steps")
        node = next((word.value for word in call.node.keywords if word.arg == key), None)
        position = POSITIONS.get(call.method, 2)
        if node is None and len(call.node.args) > position:
            node = call.node.args[position]
        if node is not None:
            yield Length(call, ast.unparse(node), tuple(_parts(script, node, 0)))


def _parts(script: Script, node: ast.expr, depth: int) -> Iterator[ast.expr]:
    """Yield the nodes of an expression and of what its names were given."""
    for part in ast.walk(node):
        if isinstance(part, ast.expr):
            yield part
        if isinstance(part, ast.Name | ast.Attribute) and depth < 6:
            for given in _given(script, dotted(part)):
                yield from _parts(script, given, depth + 1)


def _given(script: Script, name: str) -> list[ast.expr]:
    assigned = [node for node in ast.walk(script.tree) if isinstance(node, ast.Assign)]
    return [node.value for node in assigned if any(dotted(target) == name for target in node.targets) and name]


@check({"accelerate": ">=0.20"}, seen="read source")
def scheduler_ticks_per_process(
    script: Script, effective: dict[str, Knob], accelerator: Settings = NOTHING
) -> Iterator[Finding]:
    """Find a prepared schedule that is counted in updates and advanced once per process.

    A scheduler from accelerator.prepare advances num_processes ticks at each update, unless split_batches=True or
    step_scheduler_with_optimizer=False (accelerate 1.15, AcceleratedScheduler.step). A length counted on the loader
    before prepare() is right, as that loader is num_processes times longer; one counted after it is that much too
    short: the rate reaches its end after 1/num_processes of the training, and warmup is as much shorter.
    """
    knob = effective.get("processes")
    processes = knob.value if knob is not None else UNKNOWN
    ready = prepared(script)
    if not (isinstance(processes, int) and processes > 1) or not _ticks(script, accelerator):
        return
    for length in lengths(script):
        name, inline = length.call.target, prepared_inline(script, length.call)
        name = inline or name
        if not name or not (inline or name in ready) or not any(_steps(loop, name) for loop in loops(script)):
            continue
        if any("num_processes" in ast.unparse(part) or "world_size" in ast.unparse(part) for part in length.parts):
            continue
        if not _counted_after(script, length, ready):
            continue
        yield error(
            f"{name} is prepared, and its num_training_steps ({length.text}) is counted after prepare()",
            why=f"A prepared scheduler advances {processes} ticks per update with {processes} processes: the schedule "
            f"ends after 1/{processes} of the training, and warmup too.",
            fix=f"Pass {length.text} * accelerator.num_processes (num_warmup_steps likewise), or count on the loader "
            "before accelerator.prepare, or do not prepare the scheduler and step it under accelerator.sync_gradients.",
            at=length.call.place,
        )


def _ticks(script: Script, accelerator: Settings) -> bool:
    """Say whether a prepared scheduler is known to tick once per process."""
    plain = accelerator.get("step_scheduler_with_optimizer", True) is True and not accelerator.open
    return plain and "split_batches" not in script.source


def _steps(loop: Loop, name: str) -> bool:
    return any(call.receiver == name for call in loop.of("step"))


def _counted_after(script: Script, length: Length, ready: dict[str, Call]) -> bool:
    """Say whether the length is known to be in updates of one process."""
    for part in length.parts:
        if isinstance(part, ast.Call) and dotted(part.func) == "len" and part.args:
            name = dotted(part.args[0])
            if any(part.lineno > call.node.lineno and _replaced(call, name) for call in ready.values()):
                return True
    bounds = {name for loop in loops(script) for name in _bounds(loop)}
    counted = any(isinstance(part, ast.Call) and dotted(part.func) == "len" for part in length.parts)
    return not counted and length.text.isidentifier() and length.text in bounds


def _replaced(call: Call, name: str) -> bool:
    """Say whether prepare() gives its result to the name that it was given."""
    parent = call.around[-1] if call.around else None
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return any(dotted(part) == name for target in targets for part in (getattr(target, "elts", None) or [target]))


def _bounds(loop: Loop) -> Iterator[str]:
    """Yield the names that a count of updates is compared with, to end the loop."""
    for node in ast.walk(loop.node):
        if isinstance(node, ast.If) and any(isinstance(part, ast.Break) for part in node.body):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Name):
                    yield part.id


@check({"accelerate": ">=0.20"}, seen="read source")
def scheduler_steps_every_micro_batch(script: Script, effective: dict[str, Knob]) -> Iterator[Finding]:
    """Find a scheduler that accelerate did not prepare and that steps at every micro-batch.

    Only a prepared scheduler waits for the update (AcceleratedScheduler.step). A plain one advances at each
    micro-batch, gradient_accumulation_steps times too fast for a length in updates.
    """
    knob = effective.get("gradient_accumulation_steps")
    count = knob.value if knob is not None else UNKNOWN
    if not (isinstance(count, int) and count > 1):
        return
    made = {length.call.target: length for length in lengths(script) if length.call.target}
    ready = prepared(script)
    for loop in loops(script):
        for call in loop.of("step") if loop.accumulates else ():
            length = made.get(call.receiver)
            if length is None or call.receiver in ready or call.guards or not _in_updates(length):
                continue
            yield error(
                f"{call.text} at every micro-batch, and the schedule was not prepared",
                why=f"It advances {count} ticks per update: {length.text} ticks end after 1/{count} of the training.",
                fix="Step it under `if accelerator.sync_gradients:`, or pass the scheduler to accelerator.prepare and "
                "multiply its length by accelerator.num_processes.",
                at=call.place,
            )


def _in_updates(length: Length) -> bool:
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div | ast.FloorDiv) for part in length.parts)


@check({"accelerate": ">=0.20"}, seen="read source")
def scheduler_prepared_on_processes(scheduler: Settings, processes: int, script: object = None) -> Iterator[Finding]:
    """Tell that a prepared schedule advances once per process at each update.

    Of a setup document, which does not say how num_training_steps was counted.
    """
    total = scheduler.number("num_training_steps")
    if script is None and scheduler.on("prepared") and processes > 1 and total is not UNKNOWN:
        yield info(
            f"a prepared scheduler of num_training_steps={total} with {processes} processes",
            why=f"accelerate advances it {processes} ticks per update: it ends after {total / processes:g} updates.",
            fix=f"If {total} counts updates, pass num_training_steps={total * processes} (num_warmup_steps likewise), "
            "or do not prepare the scheduler.",
            at=scheduler.where("num_training_steps"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def schedule_lacks_its_keyword(trainer: Settings) -> Iterator[Finding]:
    """Find a kind of schedule that needs a keyword which lr_scheduler_kwargs does not hold.

    cosine_with_min_lr and cosine_warmup_with_min_lr want one of min_lr and min_lr_rate, warmup_stable_decay wants
    num_decay_steps; get_scheduler raises when train() makes the schedule.
    """
    kind, key = trainer.text("lr_scheduler_type").rpartition(".")[2].lower(), "lr_scheduler_kwargs"
    given = trainer.get(key)
    needed = NEEDED.get(kind, ())
    if not needed or given is UNKNOWN or not (given is None or isinstance(given, dict)):
        return
    held = [name for name in needed if name in (given or {})]
    if len(held) == 1:
        return
    wanted = " or ".join(needed)
    yield error(
        f"lr_scheduler_type={kind!r} with {key}={given or {}}",
        why=f"It needs {'one of ' if len(needed) > 1 else ''}{wanted}"
        f"{' and not both' if held else ''}: an exception when train() makes the schedule.",
        fix=f"Set {key}={{{needed[-1]!r}: {'0.1' if 'min' in needed[-1] else '100'}}}.",
        at=trainer.where("lr_scheduler_type"),
    )


@check({"transformers": ">=5.0"}, seen="arithmetic")
def warmup_longer_than_training(trainer: Settings) -> Iterator[Finding]:
    """Find a warmup of more steps than the training has.

    The learning rate is still rising when training ends, and never reaches learning_rate.
    """
    warmup, total = trainer.number("warmup_steps"), trainer.number("max_steps")
    if total > 0 and warmup >= total and trainer.text("lr_scheduler_type") not in ("constant", "greedy"):
        yield warning(
            f"warmup_steps={warmup} with max_steps={total}",
            why=f"The rate rises until the end: it reaches {total / warmup:.0%} of learning_rate and is never decayed.",
            fix=f"Set warmup_steps to a part of {total}, such as {max(1, total // 20)} (or 0.05 for 5 %).",
            at=trainer.where("warmup_steps"),
        )


@check({"transformers": ">=5.0"}, seen="read source")
def constant_schedule_without_warmup(trainer: Settings) -> Iterator[Finding]:
    """Find a warmup beside lr_scheduler_type="constant", which has none.

    get_scheduler makes the constant schedule without num_warmup_steps; constant_with_warmup has it.
    """
    if trainer.text("lr_scheduler_type") == "constant" and trainer.number("warmup_steps") > 0:
        yield error(
            f'warmup_steps={trainer.get("warmup_steps")} with lr_scheduler_type="constant"',
            why="The constant schedule ignores warmup_steps: training starts at the full rate.",
            fix='Set lr_scheduler_type="constant_with_warmup", or leave warmup_steps out.',
            at=trainer.where("warmup_steps"),
        )

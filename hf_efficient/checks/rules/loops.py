"""Mistakes in the accumulation of hand-written loops: who divides, when gradients are cleared, when steps are taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.knob import Knob
from hf_efficient.checks.loop import Loop, loops, prepared, steps_word
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.flow import start
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings

STEPS = "gradient_accumulation_steps"
OWN = ("windows", "no_sync", "set_gradient_accumulation_boundary", "exact_accumulation")
"""Calls of a loop that governs accumulation itself."""


def accumulation(effective: dict[str, Knob]) -> Any:
    """Return the accumulation steps, or UNKNOWN."""
    knob = effective.get(STEPS)
    return knob.value if knob is not None and isinstance(knob.value, int) else UNKNOWN


@check({"accelerate": ">=0.20"}, seen="ran on CPU")
def backward_divides_already(script: Script, effective: dict[str, Knob]) -> Iterator[Finding]:
    """Find a loss that a loop divides by the accumulation steps before a backward that divides by them too.

    Accelerator.backward divides by gradient_accumulation_steps (under DeepSpeed the engine does), and
    DeepSpeedEngine.backward does so unless scale_wrt_gas=False: the update is 1/steps of what was asked for. Right is
    the division in a plain torch loop, and with an Accelerator that was not told of the steps.
    """
    for loop in loops(script):
        if loop.kind not in ("accelerator", "engine") or "scale_wrt_gas" in loop.backward.keywords:
            continue
        count = accumulation(effective)
        twice = next((one for one in loop.divisors() if _is_steps(loop, one, count)), None)
        if twice is None or count == 1 or (count is UNKNOWN and not _certain(loop, twice)):
            continue
        if any(ast.unparse(node).endswith(STEPS) for node in _factors(loop.backward.node)):
            continue
        text = ast.unparse(twice)
        much = f" ({count})" if count is not UNKNOWN else ""
        made = error if count is not UNKNOWN else warning
        yield made(
            f"the loss is divided by {text} before {loop.backward.name}",
            why=f"{loop.backward.name} divides by {STEPS}{much} already: the loss is divided twice, and the update is "
            f"{f'{1 / count:.3g}' if count is not UNKNOWN else f'1/{STEPS}'} of what it should be.",
            fix=f"Remove the division by {text}; backward alone divides"
            + (" (or pass scale_wrt_gas=False to engine.backward)." if loop.kind == "engine" else "."),
            at=loop.backward.place,
        )


def _factors(call: ast.Call) -> list[ast.expr]:
    loss = call.args[0] if call.args else None
    mults = [node for node in ast.walk(loss) if isinstance(node, ast.BinOp)] if loss is not None else []
    sides = [side for node in mults if isinstance(node.op, ast.Mult) for side in (node.left, node.right)]
    return [side for side in sides if not isinstance(side, ast.BinOp)]


def _is_steps(loop: Loop, node: ast.expr, count: Any) -> bool:
    value, node = loop.worth(node), _expanded(loop, node)
    return steps_word(node) or (isinstance(value, int | float) and value > 1 and value == count)


def _expanded(loop: Loop, node: ast.expr) -> ast.expr:
    """Return what a name was given, where that is one thing; else the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    given = loop.script.flow.reaching(node.id, loop.backward.around, start(node))
    return given[0].value or node if len(given) == 1 else node


def _certain(loop: Loop, node: ast.expr) -> bool:
    """Say whether the divisor is the library's own number, whatever it is."""
    text = ast.unparse(_expanded(loop, node))
    if text.removesuffix("()").endswith(f".{STEPS}") and text.startswith(f"{loop.backward.receiver}."):
        return True
    given = [key.value for call in loop.script.named("Accelerator") for key in call.node.keywords if key.arg == STEPS]
    return any(ast.unparse(one) == text for one in given)


@check({"accelerate": ">=0.20"}, seen="ran on CPU")
def accumulate_block_missing(script: Script, effective: dict[str, Knob]) -> Iterator[Finding]:
    """Find an Accelerator with accumulation steps and a loop without accumulate().

    Accelerator.backward divides the loss by gradient_accumulation_steps whatever stands around it; only
    `with accelerator.accumulate(model):` makes the prepared optimizer skip the steps between. Without the block each
    micro-batch is an update of its own, with 1/steps of its gradient.
    """
    count = accumulation(effective)
    if not count > 1 or script.named("accumulate", *OWN) or "sync_gradients" in script.source:
        return
    for loop in loops(script):
        steps = loop.optimizer_steps
        if loop.kind == "accelerator" and steps and not any(call.guards for call in steps):
            yield error(
                f"{STEPS}={count}, and no accelerator.accumulate() in the loop",
                why=f"backward divides each loss by {count}, and every micro-batch makes an update: {count} updates "
                f"with {1 / count:.3g} of the gradient each, instead of one.",
                fix="Wrap forward, backward, step and zero_grad in `with accelerator.accumulate(model):`, or leave "
                f"{STEPS} out.",
                at=loop.backward.place,
            )


@check(seen="ran on CPU")
def accumulated_loss_not_divided_in_loop(script: Script, effective: dict[str, Knob]) -> Iterator[Finding]:
    """Find a loop that steps every n micro-batches and divides the loss by nothing.

    backward adds gradients up, so that n means make n times the gradient of the batch of n: clipping cuts n times more,
    and SGD learns n times faster. Not meant: losses that are sums, gradients that are scaled later, and backward of an
    engine or of an Accelerator that knows the steps.
    """
    told = accumulation(effective)
    for loop in loops(script):
        free = loop.kind in ("torch", "scaler") or (loop.kind == "accelerator" and told == 1)
        steps = [call for call in loop.optimizer_steps if loop.modulo(call) is not None]
        if not free or len(steps) != 1 or len(loop.of("backward")) != 1 or loop.divisors() or _scales(loop):
            continue
        if loop.backward.guards or _summed(loop):
            continue
        every = loop.modulo(steps[0])
        count = loop.worth(every) if every is not None else UNKNOWN
        if every is None or not (count > 1 or steps_word(every)):
            continue
        text = ast.unparse(every)
        yield warning(
            f"{steps[0].text} every {text} micro-batches, and a loss that is divided by nothing",
            why=f"backward adds up: the gradient is {count if count > 1 else text} times that of the mean over the "
            "batch, which the learning rate and clipping feel.",
            fix=f"Write (loss / {text}).backward(), or let accelerate divide: "
            f"Accelerator({STEPS}={text}) and accelerator.accumulate(model).",
            at=loop.backward.place,
        )


def _scales(loop: Loop) -> bool:
    """Say whether gradients are touched by hand."""
    attributes = [node for node in ast.walk(loop.node) if isinstance(node, ast.Attribute)]
    return any(node.attr == "grad" for node in attributes) or bool(loop.of("windows", "mul_", "div_"))


def _summed(loop: Loop) -> bool:
    text = loop.script.source
    return "reduction=" in text or "num_items" in text or ".sum(" in ast.unparse(loop.node)


@check(seen="ran on CPU")
def gradients_cleared_between(script: Script, effective: dict[str, Knob]) -> Iterator[Finding]:
    """Find gradients that are cleared before the optimizer has used them.

    zero_grad between backward and step leaves nothing to step with; zero_grad at every micro-batch of a loop that steps
    every n leaves the last one's gradients only. accelerate's prepared optimizer skips zero_grad inside accumulate()
    until gradients are synced, model.zero_grad() does not.
    """
    for loop in loops(script):
        for clear in loop.of("zero_grad"):
            why = _clears(loop, clear, accumulation(effective))
            if why:
                yield error(
                    f"{clear.text} {why}",
                    why="The gradients are gone before the optimizer uses them, so that they never reach the weights.",
                    fix="Call optimizer.zero_grad() right after optimizer.step(), under the same `if` "
                    "(inside accelerator.accumulate(): the prepared optimizer's zero_grad, not the model's).",
                    at=clear.place,
                )
                break


def _clears(loop: Loop, clear: Call, count: Any) -> str:
    steps = [call for call in loop.optimizer_steps if call.receiver == clear.receiver or len(loop.optimizer_steps) == 1]
    if not steps or loop.kind in ("engine", "") or len(loop.of("backward")) > 1:
        return ""
    step = steps[0]
    between = loop.before(loop.backward, clear) and loop.before(clear, step)
    if between and clear.guards == step.guards and clear.loops == step.loops:
        return "between backward and step"
    own = clear.receiver in prepared(loop.script) and loop.accumulates
    if loop.modulo(step) is not None and not clear.guards and not own:
        value = loop.worth(loop.modulo(step) or step.node)
        return "" if value == 1 else "at every micro-batch, with a step only every few"
    module = loop.accumulates and "opt" not in clear.receiver.lower() and clear.receiver in prepared(loop.script)
    return f"at every micro-batch, with {STEPS}={count}" if module and count > 1 and not clear.guards else ""


@check(seen="ran on CPU")
def gradients_never_cleared(script: Script, zero: Settings = NOTHING) -> Iterator[Finding]:
    """Find a loop that steps an optimizer and never clears the gradients.

    backward adds to .grad, so that each step uses the sum of all gradients since the start. DeepSpeed's engine clears
    them itself.
    """
    if zero or "grad = None" in script.source or script.named("zero_grad", "zero_grad_", "initialize"):
        return
    for loop in loops(script):
        unknown = [call for call in loop.calls if call.name in script.functions]
        if loop.optimizer_steps and loop.kind in ("torch", "scaler", "accelerator") and not unknown:
            yield error(
                f"{loop.optimizer_steps[0].text} and no zero_grad()",
                why="backward adds to the gradients that are there: each update uses the sum of all of them so far.",
                fix="Call optimizer.zero_grad() after optimizer.step().",
                at=loop.optimizer_steps[0].place,
            )

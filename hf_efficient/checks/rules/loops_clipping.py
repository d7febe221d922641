"""Mistakes in the order and the company of clipping, backward and step in hand-written loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.knob import Knob
from hf_efficient.checks.loop import CLIPS, Loop, engine_optimizers, is_scheduler, loops, prepared
from hf_efficient.checks.rules.loops import STEPS, accumulation
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, Settings


def _value(effective: dict[str, Knob], key: str) -> object:
    return effective[key].value if key in effective else ""


@check({"accelerate": ">=0.20"}, seen="ran on CPU")
def clipping_before_sync(script: Script, effective: dict[str, Knob], zero: Settings = NOTHING) -> Iterator[Finding]:
    """Find clipping at every micro-batch of an accumulating loop, instead of at the last one.

    Inside accumulate() gradients grow over the micro-batches; clipping each time clips partial sums: another
    update. With fp16 it fails: clip_grad_norm_ unscales, and the second call before the scaler's update raises
    "unscale_() has already been called". `accelerator.sync_gradients` is true at the last micro-batch. DeepSpeed clips
    by itself.
    """
    count = accumulation(effective)
    if not count > 1 or zero:
        return
    fp16 = _value(effective, "precision") == "fp16"
    for loop in loops(script):
        for call in loop.of(*CLIPS) if loop.kind == "accelerator" and loop.accumulates else ():
            if call.guards or call.loops[-1] is not loop.node:
                continue
            why = f"With {STEPS}={count} it runs at every micro-batch and clips partial gradients in silence."
            if fp16:
                why = f"With {STEPS}={count} fp16 gradients are unscaled twice before an update: RuntimeError."
            made = error if fp16 else warning
            yield made(
                f"{call.text} inside accumulate() without a condition",
                why=why,
                fix=f"Write `if accelerator.sync_gradients:` before {call.method}.",
                at=call.place,
            )


@check(seen="arithmetic")
def clipping_every_micro_batch(script: Script, zero: Settings = NOTHING) -> Iterator[Finding]:
    """Find a loop that steps every n micro-batches and clips or unscales at every one.

    Gradients grow over the n micro-batches; clipping each time clips partial sums. A GradScaler unscales once per
    update only: the second unscale_() before scaler.update() raises RuntimeError (torch/amp/grad_scaler.py).
    """
    for loop in loops(script) if not zero else ():
        steps = loop.optimizer_steps
        if loop.accumulates or not steps or not all(loop.modulo(step) is not None for step in steps):
            continue
        calls = [c for c in loop.of(*CLIPS, "unscale_") if not c.guards and c.loops[-1] is loop.node]
        if not calls or not loop.before(loop.backward, calls[0]):
            continue
        twice = calls[0].method == "unscale_"
        every = ast.unparse(loop.modulo(steps[0]) or ast.Constant("n"))
        made = error if twice else warning
        yield made(
            f"{calls[0].text} at every micro-batch, and the optimizer steps every {every}",
            why="The second unscale_() before scaler.update() raises RuntimeError: it has already been called."
            if twice
            else "Partial sums of the gradients are clipped: another update than clipping the whole one.",
            fix=f"Put {' and '.join(dict.fromkeys(call.method for call in calls))} under the condition of the step, "
            "right before optimizer.step(); with accelerate under `if accelerator.sync_gradients:`.",
            at=calls[0].place,
        )


@check(seen="arithmetic")
def clipping_scaled_gradients(
    script: Script, effective: dict[str, Knob], zero: Settings = NOTHING
) -> Iterator[Finding]:
    """Find torch's clipping on gradients that a GradScaler has scaled.

    The scaler multiplies the loss by up to 65536, and gradients are that much larger until unscale_: clipping to 1 then
    leaves an update 65536 times smaller. accelerator.clip_grad_norm_ unscales by itself.
    """
    if zero or script.named("unscale_", "unscale_gradients"):
        return
    fp16 = _value(effective, "precision") == "fp16"
    for loop in loops(script):
        if loop.kind != "scaler" and not (loop.kind == "accelerator" and fp16):
            continue
        for call in loop.of(*CLIPS):
            if call.name.startswith(("torch.nn.utils.", "clip_grad.")) and call.method.endswith("_"):
                own = loop.kind == "accelerator"
                fix = "accelerator." + call.method + "(...)" if own else "scaler.unscale_(optimizer) before it"
                yield error(
                    f"{call.name} on gradients that are still scaled",
                    why="The GradScaler's factor (65536 at the start) is still in the gradients: they are clipped to a "
                    "tiny part of what was asked for.",
                    fix=f"Use {fix}.",
                    at=call.place,
                )


@check(seen="arithmetic")
def clipping_out_of_order(script: Script) -> Iterator[Finding]:
    """Find clipping that comes after the step, or before backward has made the gradients.

    Clipping changes .grad in place and acts on the next step only; after the step, zero_grad throws its work away.
    """
    for loop in loops(script):
        steps = loop.optimizer_steps
        if len(steps) != 1 or len(loop.of("backward")) != 1:
            continue
        for call in loop.of(*CLIPS):
            late = loop.before(steps[0], call) and loop.before(loop.backward, steps[0])
            early = loop.before(call, loop.backward) and loop.before(loop.backward, steps[0])
            if late or early:
                where = "after optimizer.step()" if late else "before backward"
                yield error(
                    f"{call.method} stands {where}",
                    why="It clips gradients that no step uses: the updates are not clipped.",
                    fix="Put it between backward and optimizer.step().",
                    at=call.place,
                )


@check({"accelerate": ">=0.20", "deepspeed": ">=0.10"})
def clipping_left_to_deepspeed(script: Script, zero: Settings) -> Iterator[Finding]:
    """Find clipping in a loop whose engine is DeepSpeed and whose configuration says another number.

    Under DeepSpeed accelerator.clip_grad_norm_ returns the engine's norm and clips nothing (accelerate 1.15,
    Accelerator.clip_grad_norm_); the engine clips at `gradient_clipping`, which accelerate fills with 1.0 where the
    launcher says nothing. torch.nn.utils.clip_grad_norm_ finds no gradients: the engine has taken them.
    """
    for loop in loops(script):
        for call in loop.of(*CLIPS) if loop.kind in ("accelerator", "engine") else ():
            bound = call.keywords.get("max_norm", call.args[1] if len(call.args) > 1 else None)
            engine = zero.get("gradient_clipping", "auto" if loop.kind == "accelerator" else 0)
            engine = 1.0 if engine in ("auto", None) and loop.kind == "accelerator" else engine
            if isinstance(bound, int | float) and isinstance(engine, int | float) and bound != engine:
                yield error(
                    f"{call.method} with {bound} under DeepSpeed, whose gradient_clipping is {engine}",
                    why=f"DeepSpeed clips by its own gradient_clipping; the call does nothing, and {bound} is ignored.",
                    fix=f"Set gradient_clipping: {bound} in DeepSpeed's configuration (max_grad_norm of a Trainer).",
                    at=call.place,
                )


@check({"accelerate": ">=0.20"}, seen="read source")
def backward_past_accelerator(
    script: Script, effective: dict[str, Knob], zero: Settings = NOTHING
) -> Iterator[Finding]:
    """Find loss.backward() in a loop whose model accelerate has prepared.

    Accelerator.backward scales the loss under fp16, hands it to DeepSpeed's engine and lets that step, and divides by
    the accumulation steps. Past it a GradScaler that never scaled raises AssertionError at its first step or unscale_
    (torch/amp/grad_scaler.py, _check_scale_growth_tracker); DeepSpeed's engine never steps, since the prepared
    optimizer's step does nothing (accelerate/utils/deepspeed.py); and the gradient is the sum over the micro-batches.
    In bf16 or fp32 with one step, or with a division of one's own, nothing is lost.
    """
    known = prepared(script)
    count = accumulation(effective)
    for loop in loops(script):
        if loop.kind != "torch" or not known or not any(call.receiver in known for call in loop.optimizer_steps):
            continue
        reasons = []
        if zero:
            reasons.append("DeepSpeed's engine never steps, and the prepared optimizer's step() does nothing there")
        elif _value(effective, "precision") == "fp16":
            reasons.append(
                "under fp16 the GradScaler has scaled no loss, and the first step raises AssertionError (Attempted step"
                " but _scale is None)"
            )
        if count > 1 and loop.accumulates and not loop.divisors():
            reasons.append(f"the loss is not divided by {STEPS}={count}")
        if reasons:
            yield error(
                f"{loop.backward.text} although accelerator.prepare has wrapped the model",
                why=f"It bypasses accelerate: {'; '.join(reasons)}.",
                fix=f"Write {_through_accelerate(loop, known, count)}.",
                at=loop.backward.place,
            )


def _through_accelerate(loop: Loop, known: Mapping[str, Call], count: Any) -> str:
    """Return the call that belongs there, and what it makes superfluous."""
    owner = next(iter(known.values())).receiver or "accelerator"
    divided = [ast.unparse(one) for one in loop.divisors()]
    if not divided:
        return f"{owner}.backward(loss)"
    if count > 1:
        return f"{owner}.backward(loss) and remove the division by {divided[0]}: it divides by {STEPS}={count} itself"
    return (
        f"{owner}.backward(loss / {divided[0]}), or tell Accelerator({STEPS}={divided[0]}) and leave the division out"
    )


@check({"deepspeed": ">=0.10"})
def engine_stepped_by_hand(script: Script) -> Iterator[Finding]:
    """Find optimizer.step() in a loop of DeepSpeed's engine.

    engine.step() steps the optimizer at the last micro-batch of gradient_accumulation_steps, clips, clears gradients
    and advances the scheduler. A step of the optimizer itself happens at every micro-batch, past all of that.
    """
    names = engine_optimizers(script)
    for loop in loops(script):
        for call in loop.of("step") if loop.kind == "engine" else ():
            if call.receiver in names:
                yield error(
                    f"{call.text} beside {loop.backward.name}",
                    why=f"engine.step() alone knows {STEPS}, clipping and loss scale; this steps past them.",
                    fix=f"Call {loop.backward.receiver}.step() and remove optimizer.step() and zero_grad().",
                    at=call.place,
                )


@check(seen="read source")
def scheduler_before_optimizer(script: Script) -> Iterator[Finding]:
    """Find a scheduler that steps before the optimizer in each iteration.

    The first value of the schedule is never used (torch warns of it once), and a warmup's rate is one step ahead.
    """
    for loop in loops(script):
        steps = loop.optimizer_steps
        scheduled = [call for call in loop.of("step") if is_scheduler(call)]
        if len(steps) == 1 and len(scheduled) == 1 and _same_block(loop, steps[0], scheduled[0]):
            if not (loop.before(scheduled[0], steps[0]) and loop.before(loop.backward, steps[0])):
                continue
            yield warning(
                f"{scheduled[0].text} stands before {steps[0].text}",
                why="The schedule's first value is skipped, and every rate comes a step early.",
                fix="Call optimizer.step() first, then scheduler.step().",
                at=scheduled[0].place,
            )


def _same_block(loop: Loop, one: Call, other: Call) -> bool:
    return one.guards == other.guards and one.loops == other.loops and one.loops[-1] is loop.node

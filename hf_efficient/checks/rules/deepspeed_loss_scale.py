"""Loss-scale settings and precision switches of a DeepSpeed JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings

WHOLE = ("min_loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis")
POSITIVE = ("min_loss_scale", "loss_scale_window")
"""Those that must be at least 1 while the scale is dynamic."""
USUAL = {"min_loss_scale": 1, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2}


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_loss_scale_not_whole(deepspeed: Settings) -> Iterator[Finding]:
    """Find loss-scale settings of the fp16 block that are no whole numbers, or too small.

    min_loss_scale, loss_scale_window, initial_scale_power and hysteresis are integers (DeepSpeedFP16Config in
    deepspeed/runtime/precision_config.py): pydantic refuses 0.5 and 1e-10, and under dynamic scaling (loss_scale 0) a
    floor or window of 0 is refused as well.
    A floor below 1 does not save a run whose scale keeps falling: gradients that overflow at scale 1 need bf16.
    """
    if deepspeed.get("fp16.enabled") is False:
        return
    for key in WHOLE:
        value = deepspeed.number(f"fp16.{key}")
        dynamic = deepspeed.number("fp16.loss_scale") == 0 or not deepspeed.said("fp16.loss_scale")
        if value is not UNKNOWN and (not _whole(value) or (key in POSITIVE and value < 1 and dynamic)):
            yield error(
                f"fp16.{key} is {value}",
                why=f"{key} must be an integer{' >= 1' if key in POSITIVE else ''}; DeepSpeed refuses it.",
                fix=f'Write "{key}": {USUAL[key]}, or leave it out; where the scale falls to its floor, train in bf16 '
                "instead (fp16.enabled false, bf16.enabled true).",
                at=deepspeed.where(f"fp16.{key}"),
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int) or value.is_integer()


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_static_loss_scale(deepspeed: Settings) -> Iterator[Finding]:
    """Find a fixed loss scale, and settings of the dynamic one beside it.

    loss_scale 0 scales dynamically; any other number is fixed, so that initial_scale_power, loss_scale_window,
    hysteresis and min_loss_scale do nothing, and an overflow can only skip updates. A negative one is refused.
    """
    scale = deepspeed.number("fp16.loss_scale")
    if scale is UNKNOWN or scale == 0 or deepspeed.get("fp16.enabled") is False:
        return
    at = deepspeed.where("fp16.loss_scale")
    if scale < 0 or scale in (math.inf, math.nan):
        yield error(
            f"fp16.loss_scale is {scale}",
            why="DeepSpeed refuses a loss scale that is negative or not finite.",
            fix='Write "loss_scale": 0 for dynamic loss scaling.',
            at=at,
        )
        return
    idle = [key for key in WHOLE if deepspeed.said(f"fp16.{key}")]
    if idle:
        yield warning(
            f"fp16.loss_scale is fixed at {scale}, beside {', '.join(idle)}",
            why="With a fixed loss scale the settings of dynamic scaling do nothing.",
            fix=f'Write "loss_scale": 0 for dynamic scaling, or remove {", ".join(idle)}.',
            at=at,
        )


@check({"deepspeed": ">=0.10"})
def deepspeed_initial_scale_too_high(deepspeed: Settings) -> Iterator[Finding]:
    """Find an initial loss scale above 2^24.

    fp16 holds numbers up to 65504, so that every update is skipped until halving has brought the scale down: with
    hysteresis 2 some updates per halving.
    """
    power = deepspeed.number("fp16.initial_scale_power")
    if power is not UNKNOWN and power > 24 and deepspeed.get("fp16.enabled") is not False:
        yield info(
            f"fp16.initial_scale_power is {power}: the loss scale begins at 2^{power}",
            why="The first updates overflow and are skipped until the scale has been halved down to what fp16 holds.",
            fix='Write "initial_scale_power": 16.',
            at=deepspeed.where("fp16.initial_scale_power"),
        )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_fp16_and_bf16(deepspeed: Settings) -> Iterator[Finding]:
    """Find fp16 and bf16 both enabled in the DeepSpeed JSON.

    DeepSpeed asserts that they are not on together. "auto" in both is right: transformers turns on one of them.
    """
    said = [deepspeed.get(f"{name}.enabled") for name in ("fp16", "bf16")]
    if all(value is True or (isinstance(value, str) and value.lower() == "true") for value in said):
        yield error(
            "fp16.enabled and bf16.enabled are both true in the DeepSpeed JSON",
            why="DeepSpeed stops: bfloat16 and fp16 modes cannot be enabled together.",
            fix='Write "enabled": "auto" in both blocks and one flag in the arguments, or remove one block: keep bf16'
            " on cards of capability 8.0 and above, fp16 below.",
            at=deepspeed.where("fp16.enabled"),
        )


@check({"deepspeed": ">=0.16"})
def deepspeed_autocast_beside_precision(deepspeed: Settings) -> Iterator[Finding]:
    """Find torch_autocast beside fp16 or bf16 in the DeepSpeed JSON.

    torch_autocast keeps the weights in fp32 and casts inside the operations; fp16 and bf16 cast the model itself, so
    that autocast has nothing left to do (deepspeed/runtime/engine.py).
    """
    other = next((name for name in ("bf16", "fp16") if deepspeed.get(f"{name}.enabled") is True), "")
    if deepspeed.on("torch_autocast.enabled") and other:
        yield warning(
            f"torch_autocast and {other} are both enabled in the DeepSpeed JSON",
            why=f"{other} casts the whole model, so torch_autocast does not keep fp32 weights as it is meant to.",
            fix=f"Keep one: torch_autocast (fp32 weights) or {other}.",
            at=deepspeed.where("torch_autocast"),
        )


@check({"deepspeed": ">=0.19"})
def deepspeed_half_masters(deepspeed: Settings, zero: Settings = NOTHING) -> Iterator[Finding]:
    """Find master weights in half precision where ZeRO does not allow them.

    bf16_master_weights_and_grads and fp16_master_weights_and_grads need ZeRO stage 1, 2 or 3; bf16_optimizer_states
    needs bf16_master_weights_and_grads as well (_do_error_check in deepspeed/runtime/config.py asserts both).
    """
    stage = zero.get("stage", 0)
    for path in ("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"):
        if deepspeed.get(path) is True and stage == 0:
            yield error(
                f"{path} is true at ZeRO stage 0",
                why="DeepSpeed asserts ZeRO stage 1, 2 or 3 for it.",
                fix=f"Set zero_optimization.stage to 1, 2 or 3, or remove {path}.",
                at=deepspeed.where(path),
            )
    path = "bf16.bf16_optimizer_states"
    if deepspeed.get(path) is True and deepspeed.off("bf16.bf16_master_weights_and_grads"):
        yield error(
            f"{path} without bf16_master_weights_and_grads",
            why="DeepSpeed asserts bf16_master_weights_and_grads for it.",
            fix='Add "bf16_master_weights_and_grads": true to the bf16 block, or remove bf16_optimizer_states.',
            at=deepspeed.where(path),
        )

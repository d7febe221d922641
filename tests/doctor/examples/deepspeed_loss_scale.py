"""Setups in which the checks of deepspeed_loss_scale find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any


def _fp16(**keys: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True} | keys}}


def _json(**keys: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": 2}} | keys}


BOTH = {"enabled": True}
EXAMPLES = {
    "deepspeed-loss-scale-not-whole": (
        [_fp16(hysteresis=1.5), _fp16(loss_scale_window=0), _fp16(min_loss_scale=0.25)],
        [_fp16(hysteresis=2, min_loss_scale=1), _fp16(enabled=False, min_loss_scale=0.5)],
    ),
    "deepspeed-static-loss-scale": (
        [_fp16(loss_scale=1024, hysteresis=2), _fp16(loss_scale=-1)],
        [_fp16(loss_scale=0, hysteresis=2), _fp16(loss_scale=128)],
    ),
    "deepspeed-initial-scale-too-high": (
        [_fp16(initial_scale_power=32), _fp16(initial_scale_power=28)],
        [_fp16(initial_scale_power=16)],
    ),
    "deepspeed-fp16-and-bf16": (
        [_json(fp16=BOTH, bf16=BOTH), _json(fp16={"enabled": True, "loss_scale": 0}, bf16=BOTH)],
        [_json(fp16={"enabled": "auto"}, bf16={"enabled": "auto"}), _json(fp16={"enabled": False}, bf16=BOTH)],
    ),
    "deepspeed-autocast-beside-precision": (
        [_json(torch_autocast=BOTH, bf16=BOTH), _json(torch_autocast={"enabled": True, "dtype": "fp16"}, fp16=BOTH)],
        [_json(torch_autocast=BOTH), _json(torch_autocast={"enabled": False}, bf16=BOTH)],
    ),
    "deepspeed-half-masters": (
        [
            {"deepspeed": {"zero_optimization": {"stage": 0}, "bf16": {"bf16_master_weights_and_grads": True}}},
            _json(bf16={"enabled": True, "bf16_optimizer_states": True}),
        ],
        [_json(bf16={"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True})],
    ),
}

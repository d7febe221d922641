"""Setups in which the checks of deepspeed_values find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any


def _json(**keys: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": 2}} | keys}


def _zero(**keys: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": 3} | keys}}


EXAMPLES = {
    "deepspeed-number-as-string": (
        [
            _json(gradient_clipping="1.0"),
            _json(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": "3e-4", "warmup_num_steps": 10}}),
            _json(optimizer={"type": "Adam", "params": {"betas": ["0.9", 0.98]}}),
            _zero(stage="3"),
            _zero(reduce_bucket_size="5e8"),
        ],
        [
            _json(gradient_clipping=1.0, tensorboard={"enabled": True, "job_name": "007"}),
            _json(train_micro_batch_size_per_gpu="auto"),
        ],
    ),
    "deepspeed-flag-as-string": (
        [
            _json(zero_force_ds_cpu_optimizer="false"),
            _json(bf16={"enabled": "true"}) | {"trainer": {"bf16": True}},
        ],
        [_json(zero_force_ds_cpu_optimizer=False), _json(bf16={"enabled": "auto"}) | {"trainer": {"bf16": True}}],
    ),
    "deepspeed-wrong-type": (
        [_zero(reduce_bucket_size=[1, 2]), _zero(overlap_comm=7), _zero(sub_group_size=-1)],
        [_zero(reduce_bucket_size=5e8, overlap_comm=True), _zero(reduce_bucket_size="auto")],
    ),
    "zero-stage-unknown": (
        [
            _zero(stage=4),
            {"launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 5}}},
            _zero(stage="weights"),
        ],
        [_zero(), {"launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 1}}}],
    ),
    "zero-offload-device-unknown": (
        [
            _zero(offload_param={"device": "gpu"}),
            {"launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"offload_optimizer_device": "disk"}}},
        ],
        [_zero(offload_param={"device": "cpu"}), _zero(offload_optimizer={"device": "none"})],
    ),
    "deepspeed-offload-without-block": (
        [_zero(offload_optimizer=True), _zero(offload_param="cpu")],
        [_zero(offload_optimizer={"device": "cpu"})],
    ),
}

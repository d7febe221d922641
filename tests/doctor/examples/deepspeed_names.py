"""Setups in which the checks of deepspeed_names find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

ZERO_2 = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}

EXAMPLES = {
    "deepspeed-unknown-top-level-key": (
        [
            {"deepspeed": ZERO_2 | {"gradient_cliping": 0.5}},
            {"deepspeed": {"zero_optimization": {"stage": 1}, "overlap_comm": True}},
            {"deepspeed": ZERO_2 | {"some_note": 3}},
        ],
        [
            {"deepspeed": ZERO_2 | {"wall_clock_breakdown": False, "flops_profiler": {"enabled": True}}},
            {"deepspeed": ZERO_2 | {"_comment": "for eight cards"}},
        ],
    ),
    "deepspeed-unknown-block-key": (
        [
            {"deepspeed": {"zero_optimization": {"stage": 3, "reduce_bucketsize": 500000000}}},
            {"deepspeed": ZERO_2 | {"fp16": {"enabled": True, "loss_scale_windows": 500}}},
            {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pinned": True}}}},
        ],
        [
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
                }
            },
            {"deepspeed": ZERO_2 | {"tensorboard": {"enabled": True, "job": "a"}}},
        ],
    ),
    "deepspeed-removed-block": (
        [
            {"deepspeed": ZERO_2 | {"elasticity": {"enabled": False}}},
            {"deepspeed": {"zero_optimization": {"stage": 3, "mics_shard_size": 4}}},
        ],
        [
            {"deepspeed": ZERO_2 | {"elasticity": {"enabled": True}}, "machine": {"packages": {"deepspeed": "0.15.0"}}},
            {"deepspeed": ZERO_2 | {"data_efficiency": {"enabled": False}}},
        ],
    ),
    "deepspeed-deprecated-key": (
        [
            {"trainer": {}, "deepspeed": {"zero_optimization": {"stage": 2, "cpu_offload": True}}},
            {"deepspeed": {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}}},
        ],
        [{"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}],
    ),
    "deepspeed-optimizer-max-grad-norm": (
        [
            {"deepspeed": ZERO_2 | {"optimizer": {"type": "Adam", "params": {"lr": 1e-4, "max_grad_norm": 1.0}}}},
            {"trainer": {}, "deepspeed": ZERO_2 | {"optimizer": {"type": "Lamb", "params": {"max_grad_norm": 0.3}}}},
        ],
        [{"deepspeed": ZERO_2 | {"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}}],
    ),
}

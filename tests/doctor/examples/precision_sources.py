"""Setups in which the checks of precision_sources find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

ZERO = {"zero_optimization": {"stage": 1}}
INLINE = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}
LAUNCH = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}

EXAMPLES = {
    "deepspeed-precision-mismatch": (
        [
            {"trainer": {"fp16": True}, "deepspeed": ZERO | {"bf16": {"enabled": True}}},
            {"trainer": {"bf16": True}, "deepspeed": ZERO | {"bf16": {"enabled": False}}},
            {"sft": {"max_length": 512}, "deepspeed": ZERO | {"fp16": {"enabled": True}, "bf16": {"enabled": False}}},
        ],
        [
            {"trainer": {"bf16": True}, "deepspeed": ZERO | {"bf16": {"enabled": True}, "fp16": {"enabled": False}}},
            {"trainer": {"bf16_full_eval": True}, "deepspeed": ZERO | {"bf16": {"enabled": True}}},
            {"sft": {"max_length": 512}, "deepspeed": ZERO | {"bf16": {"enabled": True}}},
        ],
    ),
    "deepspeed-precision-against-accelerator": (
        [
            {"accelerator": {"mixed_precision": "fp16"}, "deepspeed": ZERO | {"bf16": {"enabled": True}}},
            {"accelerator": {"mixed_precision": "bf16"}, "deepspeed": ZERO | {"bf16": {"enabled": False}}},
            {
                "accelerator": {},
                "env": {"ACCELERATE_MIXED_PRECISION": "bf16"},
                "deepspeed": ZERO | {"fp16": {"enabled": True}},
            },
        ],
        [
            {"accelerator": {"mixed_precision": "fp16"}, "deepspeed": ZERO | {"fp16": {"enabled": "auto"}}},
            {"accelerator": {}, "deepspeed": ZERO | {"fp16": {"enabled": True}}},
        ],
    ),
    "launched-precision-without-flag": (
        [
            {"trainer": {}, "launch": INLINE | {"mixed_precision": "bf16"}},
            {"trainer": {"bf16": False}, "launch": INLINE, "env": {"ACCELERATE_MIXED_PRECISION": "fp16"}},
        ],
        [
            {"trainer": {"bf16": True}, "launch": INLINE | {"mixed_precision": "bf16"}},
            {"sft": {}, "launch": INLINE | {"mixed_precision": "bf16"}},
            {"trainer": {}, "launch": {"mixed_precision": "bf16", "distributed_type": "MULTI_GPU"}},
        ],
    ),
    "fp16-and-bf16-together": (
        [
            {"trainer": {"fp16": True, "bf16": True}},
            {"trainer": {"fp16_full_eval": True, "bf16_full_eval": True}},
        ],
        [
            {"accelerator": {}, "deepspeed": ZERO | {"fp16": {"enabled": True}, "bf16": {"enabled": "true"}}},
            {"sft": {"fp16": True}},
            {"trainer": {"bf16": True, "fp16_full_eval": True}},
        ],
    ),
    "flag-wins-over-environment": (
        [
            {"sft": {"max_length": 64}, "launch": {"mixed_precision": "fp16"}},
            {"accelerator": {"mixed_precision": "no"}, "env": {"ACCELERATE_MIXED_PRECISION": "bf16"}},
            {"trainer": {"fp16": True}, "launch": {"mixed_precision": "bf16"}},
        ],
        [
            {"trainer": {"bf16": True}, "launch": {"mixed_precision": "bf16"}},
            {"accelerator": {}, "launch": {"mixed_precision": "bf16"}},
        ],
    ),
    "launch-keys-beside-deepspeed-file": (
        [
            {"launch": LAUNCH | {"mixed_precision": "no"}},
            {"launch": {"deepspeed_config": {"deepspeed_config_file": "z.json", "zero_stage": 3}}},
        ],
        [
            {"launch": LAUNCH | {"num_processes": 4}},
            {"launch": {"deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0}, "mixed_precision": "bf16"}},
        ],
    ),
}

"""Setups in which the checks of checkpointing find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

ON = {"activation_checkpointing": True}
FSDP = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": True}}

EXAMPLES = {
    "checkpointing-keywords-without-use-reentrant": (
        [
            {"trainer": ON | {"activation_checkpointing_kwargs": {"preserve_rng_state": False}}},
            {"sft": {"gradient_checkpointing_kwargs": '{"determinism_check": "none", "every_n_layers": 2}'}},
        ],
        [
            {"trainer": ON | {"activation_checkpointing_kwargs": {"every_n_layers": 2, "offload": False}}},
            {
                "trainer": ON
                | {"activation_checkpointing_kwargs": {"preserve_rng_state": False, "use_reentrant": False}}
            },
            {"trainer": {"activation_checkpointing_kwargs": {"preserve_rng_state": False}}},
        ],
    ),
    "checkpointing-named-twice": (
        [
            {"trainer": ON | {"gradient_checkpointing": False}},
            {
                "trainer": ON
                | {
                    "activation_checkpointing_kwargs": {"use_reentrant": False},
                    "gradient_checkpointing_kwargs": {"use_reentrant": True},
                }
            },
        ],
        [{"trainer": ON | {"gradient_checkpointing": True}}, {"sft": {"activation_checkpointing": False}}],
    ),
    "checkpointing-by-trainer-and-fsdp": (
        [
            {"sft": {"bf16": True}, "launch": FSDP},
            {
                "trainer": {
                    "fsdp": True,
                    "fsdp_config": {"activation_checkpointing": True},
                    "gradient_checkpointing": True,
                }
            },
            {"trainer": {"fsdp": True, "fsdp_config": {"version": 2}, **ON}},
        ],
        [
            {"sft": {"gradient_checkpointing": False}, "launch": FSDP},
            {"trainer": {"bf16": True}, "launch": FSDP},
        ],
    ),
    "checkpoint-offload-without-gpu": (
        [
            {"trainer": ON | {"use_cpu": True, "activation_checkpointing_kwargs": {"offload": True}}},
            {"trainer": ON | {"activation_checkpointing_kwargs": '{"offload": true}'}, "machine": {"gpus": 0}},
        ],
        [{"trainer": ON | {"activation_checkpointing_kwargs": {"offload": True}}, "machine": {"gpus": 1}}],
    ),
    "checkpointing-not-supported": (
        [
            {"trainer": ON, "model": {"class": "MobileNetV2ForImageClassification", "model_type": "mobilenet_v2"}},
            {
                "trainer": {"gradient_checkpointing": True},
                "model": {"model_type": "patchtst", "class": "PatchTSTForPrediction"},
            },
        ],
        [
            {"trainer": ON, "model": {"class": "BertForMaskedLM", "model_type": "bert"}},
            {"trainer": ON, "model": {"class": "MyOwnModel"}},
            {"trainer": {}, "model": {"class": "MobileNetV2ForImageClassification", "model_type": "mobilenet_v2"}},
        ],
    ),
    "cache-with-checkpointing": (
        [{"trainer": ON | {"use_cache": True}}, {"sft": {"use_cache": True}}],
        [{"trainer": {"use_cache": True}}, {"trainer": ON}],
    ),
}

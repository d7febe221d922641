"""Setups in which the checks of deepspeed_arguments find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

OLD = {"packages": {"deepspeed": "0.18.2"}}


def _json(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"} | keys


EXAMPLES = {
    "deepspeed-mismatch": (
        [
            {"trainer": {"per_device_train_batch_size": 2}, "deepspeed": _json(train_micro_batch_size_per_gpu=4)},
            {
                "trainer": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
                "deepspeed": _json(train_batch_size=64),
                "processes": 4,
            },
            {
                "trainer": {"adam_beta2": 0.95},
                "deepspeed": _json(optimizer={"type": "AdamW", "params": {"betas": [0.9, 0.999]}}),
            },
            {
                "trainer": {"warmup_steps": 50},
                "deepspeed": _json(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 100}}),
            },
            {
                "sft": {"learning_rate": 1e-5},
                "deepspeed": _json(scheduler={"type": "WarmupDecayLR", "params": {"warmup_num_steps": 300}}),
            },
            {
                "trainer": {"warmup_ratio": 0.05, "max_steps": 1000},
                "deepspeed": _json(scheduler={"params": {"warmup_num_steps": 100}}),
            },
            {"trainer": {}, "deepspeed": _json(optimizer={"type": "Adam", "params": {"weight_decay": 0.1}})},
        ],
        [
            {"trainer": {"warmup_steps": 0.05}, "deepspeed": _json(scheduler={"params": {"warmup_num_steps": 100}})},
            {"trainer": {}, "deepspeed": _json(scheduler={"params": {"warmup_num_steps": 1}})},
            {"trainer": {"per_device_train_batch_size": 4}, "deepspeed": _json(train_micro_batch_size_per_gpu=4)},
            {"trainer": {"learning_rate": 1e-4}, "deepspeed": _json(optimizer={"params": {"lr": "auto"}})},
            {"trainer": {"per_device_train_batch_size": 2}, "deepspeed": _json(train_batch_size=64)},
            {"sft": {}, "deepspeed": _json(bf16={"enabled": True})},
        ],
    ),
    "deepspeed-batch-product": (
        [
            {"deepspeed": _json(train_batch_size=30, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2)},
            {
                "deepspeed": _json(
                    train_batch_size=32, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2
                ),
                "processes": 8,
            },
        ],
        [
            {
                "deepspeed": _json(
                    train_batch_size=64, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2
                ),
                "processes": 8,
            },
            {"deepspeed": _json(train_batch_size=64, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2)},
            {"deepspeed": _json(train_batch_size=30, train_micro_batch_size_per_gpu=4), "processes": 8},
        ],
    ),
    "deepspeed-batch-not-positive": (
        [{"deepspeed": _json(gradient_accumulation_steps=0)}, {"deepspeed": _json(train_batch_size=2.5)}],
        [{"deepspeed": _json(gradient_accumulation_steps=1, train_batch_size="auto")}],
    ),
    "deepspeed-max-grad-norm-ignored": (
        [
            {"trainer": {"max_grad_norm": 5.0}, "deepspeed": {"zero_optimization": {"stage": 1}}},
            {"sft": {"max_grad_norm": 0}, "deepspeed": {"zero_optimization": {"stage": 3}}},
        ],
        [
            {"trainer": {"max_grad_norm": 1.0}, "deepspeed": {"zero_optimization": {"stage": 1}}},
            {"trainer": {"max_grad_norm": 5.0}, "deepspeed": _json()},
            {"trainer": {"max_grad_norm": 5.0}, "deepspeed": {"zero_optimization": {}}, "machine": OLD},
        ],
    ),
    "deepspeed-clipping-left-to-default": (
        [
            {"trainer": {"max_grad_norm": 5.0}, "deepspeed": {"zero_optimization": {"stage": 1}}, "machine": OLD},
            {"trainer": {}, "deepspeed": {"zero_optimization": {"stage": 2}}, "machine": OLD},
        ],
        [{"trainer": {"max_grad_norm": 5.0}, "deepspeed": _json(), "machine": OLD}],
    ),
}

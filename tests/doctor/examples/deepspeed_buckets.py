"""Setups in which the checks of deepspeed_buckets find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

OMNI = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": {"hidden_size": 2048}}}
LLAVA = {"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 5120}, "vision_config": {}}


def _json(size: Any = "auto", stage: int = 3) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, "reduce_bucket_size": size, "stage3_prefetch_bucket_size": size}}


EXAMPLES = {
    "deepspeed-auto-buckets-without-hidden-size": (
        [
            {"trainer": {}, "deepspeed": _json(), "model": {"config": OMNI}},
            {"accelerator": {}, "deepspeed": _json(), "model": {"config": LLAVA}},
            {"accelerator": {}, "deepspeed": _json(), "model": {"model_type": "gemma3", "hidden_size": 2560}},
            {"trainer": {}, "deepspeed": _json(), "model": {"config": {"encoder": {"d": 1}, "decoder": {"d": 2}}}},
        ],
        [
            {"trainer": {}, "deepspeed": _json(), "model": {"config": LLAVA}},
            {"accelerator": {}, "deepspeed": _json(1000), "model": {"config": LLAVA}},
            {"accelerator": {}, "deepspeed": _json(), "model": {"config": {"model_type": "gpt2", "n_embd": 768}}},
            {"accelerator": {}, "deepspeed": _json(), "model": {"model_type": "some-new-model"}},
            {"deepspeed": _json(), "model": {"config": OMNI}},
        ],
    ),
}

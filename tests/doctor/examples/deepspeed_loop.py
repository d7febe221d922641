"""Setups in which the checks of deepspeed_loop find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

CLIP = """
from accelerate import Accelerator
accelerator = Accelerator()
for batch in loader:
    accelerator.backward(model(**batch).loss)
    accelerator.clip_grad_norm_(model.parameters(), {norm})
    optimizer.step()
"""
UNCLIPPED = CLIP.replace("    accelerator.clip_grad_norm_(model.parameters(), {norm})\n", "")


def _yaml(kind: str = "DEEPSPEED", **keys: Any) -> dict[str, Any]:
    return {"distributed_type": kind, "deepspeed_config": {"zero_stage": 2} | keys}


def _json(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 1}} | keys


STEPS = "gradient_accumulation_steps"
EXAMPLES = {
    "deepspeed-accumulation-beats-code": (
        [
            {"accelerator": {STEPS: 4}, "launch": _yaml(gradient_accumulation_steps=16)},
            {"accelerator": {STEPS: 2}, "deepspeed": _json(gradient_accumulation_steps=8)},
            {"accelerator": {STEPS: 3}, "deepspeed": _json()},
        ],
        [
            {"accelerator": {STEPS: 4}, "launch": _yaml()},
            {"accelerator": {STEPS: 4}, "deepspeed": _json(gradient_accumulation_steps="auto")},
            {"accelerator": {STEPS: 4}, "launch": _yaml(gradient_accumulation_steps=4)},
        ],
    ),
    "launcher-accumulation-without-deepspeed": (
        [
            {"launch": {"distributed_type": "MULTI_GPU", "deepspeed_config": {STEPS: 4}}},
            {"launch": {"distributed_type": "FSDP", STEPS: 8}},
        ],
        [{"launch": _yaml(gradient_accumulation_steps=4)}, {"launch": {"distributed_type": "MULTI_GPU"}}],
    ),
    "deepspeed-accumulation-missing": (
        [
            {"trainer": {STEPS: 4}, "deepspeed": _json(train_micro_batch_size_per_gpu="auto")},
            {"sft": {STEPS: 16}, "deepspeed": _json(train_batch_size="auto")},
        ],
        [
            {"trainer": {STEPS: 4}, "deepspeed": _json(gradient_accumulation_steps="auto")},
            {"trainer": {STEPS: 1}, "deepspeed": _json()},
        ],
    ),
    "launcher-deepspeed-against-arguments": (
        [
            {"trainer": {STEPS: 4}, "launch": _yaml(gradient_accumulation_steps=1)},
            {"sft": {"max_grad_norm": 0.3}, "launch": _yaml(gradient_clipping=1.0)},
        ],
        [
            {"trainer": {STEPS: 4}, "launch": _yaml(gradient_accumulation_steps=4)},
            {"trainer": {"max_grad_norm": 1.0}, "launch": _yaml(gradient_clipping=1.0)},
        ],
    ),
    "deepspeed-clipping-zero-in-yaml": (
        [{"launch": _yaml(gradient_clipping=0.0)}, {"trainer": {}, "launch": _yaml(gradient_clipping=0)}],
        [{"launch": _yaml(gradient_clipping=0.5)}, {"launch": _yaml()}],
    ),
    "clip-grad-norm-ignored-by-deepspeed": (
        [
            {"script": CLIP.format(norm=0.5), "accelerator": {}, "launch": _yaml()},
            {"script": CLIP.format(norm=2.0), "accelerator": {}, "deepspeed": _json(gradient_clipping=1.0)},
        ],
        [
            {"script": CLIP.format(norm=1.0), "accelerator": {}, "launch": _yaml()},
            {"script": CLIP.format(norm="limit"), "accelerator": {}, "launch": _yaml()},
            {"script": CLIP.format(norm=0.5), "accelerator": {}, "launch": {"distributed_type": "MULTI_GPU"}},
        ],
    ),
    "deepspeed-clipping-auto-in-loop": (
        [
            {"script": UNCLIPPED, "accelerator": {}, "deepspeed": _json(gradient_clipping="auto")},
            {"script": CLIP.format(norm="limit"), "accelerator": {}, "deepspeed": _json(gradient_clipping="auto")},
        ],
        [
            {"script": UNCLIPPED, "accelerator": {}, "deepspeed": _json(gradient_clipping=0.5)},
            {"script": CLIP.format(norm=1.0), "accelerator": {}, "deepspeed": _json(gradient_clipping="auto")},
            {"script": CLIP.format(norm=0.5), "accelerator": {}, "deepspeed": _json(gradient_clipping="auto")},
            {"script": "trainer.train()", "trainer": {}, "deepspeed": _json(gradient_clipping="auto")},
        ],
    ),
    "launcher-accumulation-auto": (
        [
            {"accelerator": {STEPS: 2}, "launch": _yaml(gradient_accumulation_steps="auto")},
            {"launch": _yaml(gradient_accumulation_steps="auto")},
        ],
        [
            {"trainer": {}, "launch": _yaml(gradient_accumulation_steps="auto")},
            {"accelerator": {}, "launch": _yaml(gradient_clipping="auto")},
        ],
    ),
}

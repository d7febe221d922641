"""Setups in which the checks of flash_attention find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

_LOAD = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nimport torch\n"


def _model(version: int, **keys: Any) -> dict[str, Any]:
    return {"class": "MistralForCausalLM", "attn_implementation": f"flash_attention_{version}"} | keys


def _train(arguments: str, load: str) -> str:
    return (
        f"{_LOAD}model = AutoModelForCausalLM.from_pretrained('m', {load})\n"
        f"Trainer(model=model, args=TrainingArguments('out', {arguments}), train_dataset=rows).train()\n"
    )


EXAMPLES = {
    "flash-attention-needs-newer-card": (
        [
            {"trainer": {"fp16": True}, "model": _model(2), "machine": {"gpu": "T4"}},
            {"trainer": {"bf16": True}, "model": _model(4), "machine": {"gpu": "A100-80GB"}},
            {
                "files": {"t.py": _train("fp16=True", "attn_implementation='flash_attention_2'")},
                "gpu": "V100-32GB",
            },
        ],
        [
            {"trainer": {"bf16": True}, "model": _model(3), "machine": {"gpu": "A100-80GB"}},
            {"trainer": {"fp16": True}, "model": _model(2)},
            {"trainer": {"fp16": True}, "model": {"attn_implementation": "sdpa"}, "machine": {"gpu": "T4"}},
        ],
    ),
    "flash-attention-in-float32": (
        [
            {"trainer": {"bf16": False}, "model": _model(2, load_dtype="float32"), "machine": {"gpu": "L4"}},
            {
                "files": {
                    "t.py": _train("tf32=True", "dtype=torch.float32, attn_implementation='flash_attention_2'"),
                },
                "gpu": "A100-80GB",
            },
        ],
        [
            {"trainer": {"bf16": True}, "model": _model(2, load_dtype="float32")},
            {"trainer": {}, "model": _model(2, load_dtype="bfloat16")},
            {"trainer": {}, "model": _model(2)},
        ],
    ),
    "four-bit-computes-in-float16-under-bf16": (
        [
            {
                "trainer": {"bf16": True},
                "model": {"load_in_4bit": True, "bnb_4bit_compute_dtype": "float16"},
                "peft": {"r": 8},
            },
            {
                "accelerator": {"mixed_precision": "bf16"},
                "model": {"load_in_4bit": True, "bnb_4bit_compute_dtype": "torch.float16"},
                "peft": {"r": 16},
            },
        ],
        [
            {
                "trainer": {"fp16": True},
                "model": {"load_in_4bit": True, "bnb_4bit_compute_dtype": "float16"},
                "peft": {"r": 8},
            },
            {"trainer": {"bf16": True}, "model": {"load_in_8bit": True, "bnb_4bit_compute_dtype": "float16"}},
        ],
    ),
}

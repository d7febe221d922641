"""Setups in which the checks of precision_models find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

LOOP = """
import torch
from accelerate import Accelerator
from transformers import AutoModelForSeq2SeqLM
accelerator = Accelerator(mixed_precision="fp16")
model = AutoModelForSeq2SeqLM.from_pretrained("{name}", dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
model.train()
for batch in torch.load("batches.pt"):
    accelerator.backward(model(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()
"""

EXAMPLES = {
    "bf16-born-model-in-fp16": (
        [
            {"trainer": {"fp16": True}, "model": {"class": "Gemma3ForCausalLM", "load_dtype": "float32"}},
            {"sft": {"fp16": True}, "model": {"class": "AutoModelForCausalLM", "checkpoint_dtype": "bfloat16"}},
            {"files": {"train.py": LOOP.format(name="google/flan-t5-large")}, "gpu": "A100-40GB"},
            {"trainer": {}, "env": {"ACCELERATE_MIXED_PRECISION": "fp16"}, "model": {"model_type": "longt5"}},
        ],
        [
            {"files": {"train.py": LOOP.format(name="facebook/bart-large")}, "gpu": "A100-40GB"},
            {"trainer": {"fp16": True}, "model": {"class": "AutoModelForCausalLM", "checkpoint_dtype": "float16"}},
            {"trainer": {"bf16": True}, "model": {"model_type": "gemma2"}},
            {"trainer": {"fp16": True}, "model": {"class": "AutoModelForCausalLM"}},
        ],
    ),
}

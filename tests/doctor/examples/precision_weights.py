"""Setups in which the checks of precision_weights find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

LOOP = """
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained("facebook/bart-base", dtype=torch.{dtype}).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda", enabled={scaled})
for batch in torch.load("batches.pt"):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**batch).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
HEAD = """
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
model = AutoModelForSequenceClassification.from_pretrained("microsoft/deberta-v3-base", dtype="{dtype}")
model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query_proj"]))
Trainer(model=model, args=TrainingArguments(fp16=True)).train()
"""
ACCELERATED = {
    "accelerator": {"mixed_precision": "fp16"},
    "model": {"class": "GPT2LMHeadModel", "load_dtype": "float16"},
}
SAVED = {"r": 8, "target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}
ADAPTED = {"trainer": {"fp16": True}, "model": {"class": "GPT2LMHeadModel", "load_dtype": "half"}}
BF16 = {"class": "Qwen3ForCausalLM", "model_type": "qwen3", "load_dtype": "bfloat16", "params": 8e9}

EXAMPLES = {
    "half-precision-parameters-under-grad-scaler": (
        [
            ACCELERATED,
            ADAPTED | {"peft": SAVED},
            {"files": {"loop.py": LOOP.format(dtype="half", scaled=True)}},
            {"files": {"head.py": HEAD.format(dtype="float16")}, "gpu": "V100-16GB"},
            {"sft": {"fp16": True}, "model": {"load_in_4bit": True}, "peft": {"r": 8, "target_modules": "all-linear"}},
        ],
        [
            ADAPTED | {"peft": {"r": 8, "target_modules": ["c_attn"], "trainable_token_indices": [5, 6]}},
            ACCELERATED | {"launch": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}},
            ADAPTED | {"peft": SAVED | {"prepared_for_kbit": True}},
            {"files": {"loop.py": LOOP.format(dtype="float32", scaled=True)}},
            {"files": {"loop.py": LOOP.format(dtype="float16", scaled="use_scaler")}},
            {"files": {"head.py": HEAD.format(dtype="float32")}},
        ],
    ),
    "bf16-weights-without-fp32-masters": (
        [
            {"trainer": {"bf16": True, "optim": "adamw_torch"}, "model": BF16},
            {"accelerator": {}, "model": {"checkpoint_dtype": "torch.bfloat16", "class": "AutoModelForCausalLM"}},
            {"trainer": {"fsdp": True, "bf16": False}, "model": BF16, "machine": {"gpu": "H100-80GB"}},
        ],
        [
            {"trainer": {"fsdp": True, "bf16": True}, "model": BF16},
            {
                "trainer": {"bf16": True, "optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=True"},
                "model": BF16,
            },
            {"trainer": {"bf16": True}, "model": BF16, "peft": {"r": 4, "target_modules": "all-linear"}},
            {"trainer": {"bf16": True}, "model": {"class": "Qwen3ForCausalLM", "model_type": "qwen3"}},
        ],
    ),
}

"""Setups in which the checks of batch find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_ARGUMENTS = {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 5, "auto_find_batch_size": True}

EXAMPLES = {
    "batch-finder-changes-the-effective-batch": (
        [
            {"trainer": _ARGUMENTS, "processes": 4, "launcher": "accelerate"},
            {"sft": {"auto_find_batch_size": True, "max_length": 512}},
            {
                "files": {
                    "run.py": "from transformers import TrainingArguments, Trainer, AutoModelForCausalLM\n"
                    "size = 24\n"
                    "args = TrainingArguments('out', per_device_train_batch_size=size, auto_find_batch_size=True)\n"
                    "Trainer(model=AutoModelForCausalLM.from_pretrained('m'), args=args).train()\n"
                }
            },
        ],
        [
            {"trainer": {**_ARGUMENTS, "auto_find_batch_size": False}, "processes": 4},
            {
                "files": {
                    "run.py": "import sys\nfrom transformers import TrainingArguments, Trainer\n"
                    "args = TrainingArguments('out', auto_find_batch_size=len(sys.argv) > 2)\n"
                    "Trainer(model=None, args=args).train()\n"
                }
            },
        ],
    ),
    "batch-finder-with-zero-3": (
        [
            {"trainer": {"auto_find_batch_size": True}, "deepspeed": {"zero_optimization": {"stage": 3}}},
            {
                "trainer": {"auto_find_batch_size": True, "per_device_train_batch_size": 16},
                "launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
            },
        ],
        [{"trainer": {"auto_find_batch_size": True}, "deepspeed": {"zero_optimization": {"stage": 2}}}],
    ),
    "vocabulary-no-multiple-of-8": (
        [
            {"trainer": {"bf16": True}, "model": {"model_type": "gpt2", "vocab_size": 50257}},
            {"trainer": {"fp16": True}, "model": {"model_type": "llama", "vocab_size": 32001}},
        ],
        [
            {"trainer": {"bf16": True}, "model": {"vocab_size": 32000}},
            {"trainer": {}, "model": {"vocab_size": 50257}},
        ],
    ),
    "steps-beside-epochs": (
        [
            {"trainer": {"max_steps": 500, "num_train_epochs": 3}},
            {"sft": {"max_steps": 20, "num_train_epochs": 1.5, "packing": True}},
        ],
        [{"trainer": {"max_steps": -1, "num_train_epochs": 3}}, {"trainer": {"max_steps": 500}}],
    ),
    "warmup-of-one-update": (
        [
            {"trainer": {"num_train_epochs": 3, "warmup_steps": 1.0}},
            {"sft": {"max_steps": 500, "warmup_ratio": 1.0}},
        ],
        [
            {"trainer": {"max_steps": 200, "warmup_steps": 1}},
            {"trainer": {"num_train_epochs": 1, "warmup_steps": 500}},
        ],
    ),
    "interval-no-whole-number": (
        [
            {"trainer": {"logging_steps": 2.5}},
            {"trainer": {"eval_strategy": "steps", "eval_steps": 100.5}},
            {"trainer": {"logging_steps": 0}},
        ],
        [
            {"trainer": {"logging_steps": 0.1, "save_steps": 50.0}},
            {"trainer": {"logging_steps": 0, "logging_strategy": "epoch"}},
        ],
    ),
}

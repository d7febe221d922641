"""Setups in which the checks of arguments find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_HEAD = "from transformers import Trainer, TrainingArguments\n"

EXAMPLES = {
    "unknown-argument": (
        [
            {"trainer": {"gradient_accumulation_step": 4}},
            {"trainer": {"dataloader_num_worker": 4, "bf16": True}},
            {
                "files": {
                    "a.py": f"{_HEAD}args = TrainingArguments('out', checkpointing=True)\nTrainer(None, args).train()\n"
                }
            },
        ],
        [
            {"trainer": {"dataloader_num_workers": 4}},
            {"trainer": {"gradient_accumulation_step": 4}, "machine": {"packages": {"transformers": "5.0.0"}}},
            {
                "files": {
                    "a.py": "from transformers import Trainer\nfrom mine import Arguments\n"
                    "Trainer(None, Arguments('out', checkpointing=True)).train()\n"
                }
            },
        ],
    ),
    "unknown-accelerator-config-key": (
        [
            {"trainer": {"accelerator_config": {"dispatch_batch": False}}},
            {"trainer": {"accelerator_config": {"split_batches": True, "gradient_accumulation_steps": 2}}},
        ],
        [
            {
                "trainer": {
                    "accelerator_config": {"split_batches": True, "gradient_accumulation_kwargs": {"num_steps": 2}}
                }
            }
        ],
    ),
    "wrong-choice": (
        [
            {"trainer": {"eval_strategy": False}},
            {"trainer": {"lr_scheduler_type": "cosine_annealing"}},
            {"sft": {"optim": "paged_adamw", "save_strategy": "epochs"}},
            {"trainer": {"train_sampling_strategy": "by_length"}},
        ],
        [
            {"trainer": {"eval_strategy": "no", "optim": "lion_8bit", "lr_scheduler_type": "cosine"}},
            {
                "files": {
                    "a.py": "from transformers import SchedulerType\n"
                    f"{_HEAD}args = TrainingArguments(lr_scheduler_type=SchedulerType.COSINE)\nTrainer(m, args)\n"
                }
            },
        ],
    ),
    "text-where-a-number-belongs": (
        [
            {"trainer": {"learning_rate": "2e-4"}},
            {"trainer": {"per_device_train_batch_size": "16", "bf16": "false"}},
            {"files": {"args.json": '{"output_dir": "out", "weight_decay": "0.1", "max_steps": 10}'}},
        ],
        [
            {"trainer": {"learning_rate": 2e-4, "output_dir": "3", "run_name": "7"}},
            {"files": {"go.sh": "accelerate launch run.py --output_dir out --learning_rate 2e-4 --bf16 True\n"}},
        ],
    ),
    "impossible-number": (
        [
            {"trainer": {"gradient_accumulation_steps": 0}},
            {"trainer": {"max_grad_norm": None}},
            {"trainer": {"max_steps": 1e4, "per_device_train_batch_size": 8.0}},
        ],
        [
            {"trainer": {"gradient_accumulation_steps": 1, "max_grad_norm": 0, "max_steps": 10000}},
            {
                "files": {
                    "a.py": f"import sys\n{_HEAD}n = len(sys.argv) // 2\n"
                    "args = TrainingArguments('out', gradient_accumulation_steps=n)\nTrainer(None, args).train()\n"
                }
            },
        ],
    ),
}

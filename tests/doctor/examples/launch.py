"""Setups in which the checks of launch find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

TWO = {"gpu": "A100-40GB", "gpus": 2}
EIGHT = {"gpu": "H100", "gpus": 8}
TRAIN = """
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments
model = AutoModelForMaskedLM.from_pretrained("bert-base-cased")
args = TrainingArguments("out", per_device_train_batch_size=16)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
MACHINE = "machine:\n  gpu: A100-80GB\n  gpus: 2\n"

EXAMPLES = {
    "trainer-under-data-parallel": (
        [
            {"trainer": {"per_device_train_batch_size": 4}, "launcher": "python", "machine": EIGHT},
            {"sft": {}, "launcher": "python", "machine": TWO | {"gpus": 4}, "env": {"CUDA_VISIBLE_DEVICES": "0,3"}},
            {
                "trainer": {},
                "launcher": "accelerate",
                "launch": {"distributed_type": "NO", "num_processes": 1},
                "machine": TWO,
            },
        ],
        [
            {"trainer": {}, "launcher": "torchrun", "processes": 8, "machine": EIGHT},
            {"trainer": {}, "launcher": "python", "machine": {"gpu": "T4", "gpus": 1}},
            {"trainer": {}, "launcher": "python"},
            {"trainer": {}, "launcher": "python", "machine": EIGHT, "model": {"device_map": "auto"}},
            {"trainer": {}, "launcher": "python", "machine": EIGHT, "env": {"CUDA_VISIBLE_DEVICES": "5"}},
        ],
    ),
    "more-processes-than-devices": (
        [
            {"launcher": "accelerate", "processes": 4, "machine": TWO},
            {"launcher": "torchrun", "processes": 3, "machine": TWO, "trainer": {}},
            {"files": {"train.py": TRAIN, "run.sh": "torchrun --nproc_per_node 4 train.py\n", "m.yaml": MACHINE}},
            {"launch": {"distributed_type": "MULTI_GPU", "gpu_ids": "0,1"}, "processes": 4, "machine": EIGHT},
        ],
        [
            {"launcher": "accelerate", "processes": 2, "machine": TWO},
            {"launcher": "accelerate", "processes": 4, "machine": {"gpu": "T4"}},
            {"launcher": "accelerate", "processes": 4, "launch": {"num_machines": 2}, "machine": TWO},
            {
                "files": {
                    "train.py": TRAIN,
                    "run.sh": "torchrun --nnodes 2 --nproc_per_node 2 train.py\n",
                    "m.yaml": MACHINE,
                }
            },
            {"launcher": "accelerate", "processes": 4, "launch": {"use_cpu": True}, "machine": TWO},
        ],
    ),
    "gpus-left-idle": (
        [
            {"launcher": "accelerate", "processes": 1, "machine": TWO, "accelerator": {}},
            {"launcher": "torchrun", "processes": 4, "machine": EIGHT, "trainer": {}},
        ],
        [
            {"launcher": "torchrun", "processes": 8, "machine": EIGHT},
            {"launcher": "torchrun", "processes": 4, "machine": EIGHT, "env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}},
        ],
    ),
    "accelerator-in-one-process": (
        [
            {"accelerator": {"mixed_precision": "bf16"}, "launcher": "python", "machine": TWO},
            {"accelerator": {}, "launcher": "python", "machine": EIGHT},
        ],
        [
            {"accelerator": {}, "launcher": "accelerate", "processes": 2, "machine": TWO},
            {"accelerator": {}, "launcher": "python", "machine": {"gpu": "L4", "gpus": 1}},
        ],
    ),
    "launched-on-cpu": (
        [
            {"launch": {"distributed_type": "NO", "use_cpu": True}, "machine": TWO},
            {"launch": {"use_cpu": True, "distributed_type": "MULTI_CPU"}, "machine": {"gpu": "RTX 4090"}},
        ],
        [{"launch": {"use_cpu": False}, "machine": TWO}, {"launch": {"use_cpu": True}}],
    ),
}

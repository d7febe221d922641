"""Numbers that TrainingArguments takes and that mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "warmup_steps": 0,
    "num_train_epochs": 0,
    "max_grad_norm": 0,
    "max_steps": -1,
    "logging_steps": 0,
}
"""Field of TrainingArguments -> the least value that means something."""


def check_ranges(given: Mapping[str, Any]) -> None:
    """Raise ValueError, in one go, for fields that would train nonsense, or nothing, without a word."""
    wrong = [
        f"--{name} must be at least {least}, not {given[name]}."
        for name, least in LEAST.items()
        if isinstance(given.get(name), int | float) and not given[name] >= least
    ]
    if given.get("max_steps") == 0:
        wrong.append("--max_steps must be at least 1, or -1 to train for --num_train_epochs, not 0.")
    if given.get("output_dir") == "":
        wrong.append("--output_dir is empty: name a folder.")
    if wrong:
        raise ValueError(" ".join(wrong))

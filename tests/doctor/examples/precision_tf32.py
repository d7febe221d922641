"""Setups in which the checks of precision_tf32 find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{before}
args = TrainingArguments(output_dir="o", {arguments})
{after}
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32)
Trainer(model=model, args=args).train()
"""
NEW = {"gpu": "L4", "packages": {"torch": "2.13.0"}}
BOTH = "import torch\ntorch.set_float32_matmul_precision('high')\n"
OLD = {"gpu": "L4", "gpus": 1, "packages": {"torch": "2.9.0"}}
READ = "print(torch.backends.cuda.matmul.allow_tf32)"


def _script(arguments: str, *, before: str = "", after: str = "") -> dict[str, object]:
    return {"files": {"train.py": SCRIPT.format(before=before, arguments=arguments, after=after)}, "gpu": "L4"}


EXAMPLES = {
    "tf32-old-switch-read": (
        [
            _script("tf32=True", after=READ),
            _script("torch_compile=True", after="print(torch.get_float32_matmul_precision())"),
            _script("tf32=False", after="print(torch.backends.cudnn.allow_tf32)"),
        ],
        [
            _script("tf32=True", after=READ, before='torch.set_float32_matmul_precision("high")'),
            _script("tf32=True", before=READ),
            _script("bf16=True", after=READ),
        ],
    ),
    "tf32-switches-mixed-under-compile": (
        [
            {"trainer": {"torch_compile": True}, "machine": OLD},
            {"trainer": {"tf32": True}, "model": {"compiled": True}, "machine": OLD},
        ],
        [
            {"trainer": {"torch_compile": True, "tf32": True}, "machine": NEW},
            {"trainer": {"torch_compile": True, "fp16": True}, "machine": OLD},
            {"trainer": {"torch_compile": True, "tf32": True}, "machine": OLD, "script": BOTH},
        ],
    ),
    "tf32-switches-disagree": (
        [
            _script("tf32=True", before='torch.set_float32_matmul_precision("highest")'),
            _script("tf32=False", after="torch.backends.cuda.matmul.allow_tf32 = True"),
        ],
        [
            _script("tf32=True", before='torch.set_float32_matmul_precision("medium")'),
            _script("bf16=True", before='torch.set_float32_matmul_precision("highest")'),
        ],
    ),
}  # fmt: skip

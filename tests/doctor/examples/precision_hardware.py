"""Setups in which the checks of precision_hardware find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

V100, T4, L4 = {"gpu": "V100-16GB", "gpus": 1}, {"gpu": "T4", "gpus": 1}, {"gpu": "L4", "gpus": 1}
PROBE = """
import torch
from transformers import Trainer, TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available
half = {probe}
args = TrainingArguments(bf16=half, fp16=not half)
"""

EXAMPLES = {
    "bf16-emulated": (
        [
            {"sft": {"max_length": 1024}, "machine": T4},
            {"accelerator": {"mixed_precision": "bf16"}, "machine": {"gpu": "Quadro RTX 6000", "capability": [7, 5]}},
            {"accelerator": {}, "launch": {"mixed_precision": "bf16"}, "machine": V100},
            {
                "trainer": {"fp16": True},
                "model": {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"},
                "peft": {"r": 8, "target_modules": ["q_proj"]},
                "machine": T4,
            },
        ],
        [
            {"sft": {"max_length": 1024, "fp16": True}, "machine": T4},
            {"trainer": {"bf16": True}, "machine": L4},
            {"trainer": {"bf16": True, "use_cpu": True}, "machine": T4},
            {"trainer": {"bf16": True}, "machine": {"gpus": 2}},
        ],
    ),
    "bf16-probe-counts-emulation": (
        [
            {"files": {"train.py": PROBE.format(probe="is_torch_bf16_gpu_available()")}, "gpu": "V100-32GB"},
            {"script": "import torch.cuda as c\nx = c.is_bf16_supported(True)\n", "machine": T4},
            {"script": "import torch\nprint(torch.cuda.is_bf16_supported())\n", "trainer": {}},
        ],
        [
            {"files": {"train.py": PROBE.format(probe="torch.cuda.is_bf16_supported()")}, "gpu": "L4"},
            {"script": "import torch\nx = torch.cuda.is_bf16_supported(False)\n", "machine": T4},
            {"script": "import torch\nc = torch.cuda\nx = c.get_device_capability() and c.is_bf16_supported()\n"},
        ],
    ),
    "fp8-without-units": (
        [
            {"accelerator": {"mixed_precision": "fp8"}, "machine": {"gpu": "A100-40GB"}},
            {"trainer": {}, "launch": {"mixed_precision": "fp8"}, "machine": V100},
        ],
        [
            {"accelerator": {"mixed_precision": "fp8"}, "machine": L4},
            {"accelerator": {"mixed_precision": "fp8"}, "machine": {"gpus": 4}},
        ],
    ),
    "tf32-without-units": (
        [{"trainer": {"tf32": True}, "machine": V100}, {"sft": {"tf32": True, "bf16": False}, "machine": {"gpus": 0}}],
        [{"trainer": {"tf32": False}, "machine": V100}, {"trainer": {"tf32": True}, "machine": {"gpus": 8}}],
    ),
    "half-precision-without-gpu": (
        [
            {"trainer": {"fp16": True, "use_cpu": True}},
            {"accelerator": {"mixed_precision": "fp16", "cpu": True}},
            {"trainer": {"bf16": True}, "machine": {"gpus": 0}},
        ],
        [{"trainer": {"bf16": True, "use_cpu": True}}, {"trainer": {"fp16": True}, "machine": {"gpus": 1}}],
    ),
}

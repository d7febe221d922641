"""Setups in which the checks of quantization find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

FOUR = {"class": "MistralForCausalLM", "model_type": "mistral", "load_in_4bit": True}
EIGHT = {"class": "MistralForCausalLM", "model_type": "mistral", "load_in_8bit": True}
PEFT = {"r": 16, "target_modules": "all-linear"}
FSDP1 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}}
STORED = FOUR | {"bnb_4bit_quant_storage": "bfloat16"}
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
config = BitsAndBytesConfig({options})
model = AutoModelForCausalLM.from_pretrained("m", quantization_config=config)
SFTTrainer(model=model, args=SFTConfig(), peft_config=LoraConfig(target_modules="all-linear")).train()
"""


def _script(options: str) -> dict[str, Any]:
    return {"files": {"train.py": SCRIPT.format(options=options)}}


EXAMPLES = {
    "quantized-weights-whole-on-every-rank": (
        [
            {"trainer": {}, "model": EIGHT, "peft": PEFT, "deepspeed": {"zero_optimization": {"stage": 3}}},
            {
                "sft": {},
                "model": FOUR | {"bnb_4bit_use_double_quant": True, "params": 7e10},
                "peft": PEFT,
                "launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
            },
        ],
        [
            {"trainer": {}, "model": FOUR, "peft": PEFT, "deepspeed": {"zero_optimization": {"stage": 1}}},
            {"trainer": {"deepspeed": "unseen.json"}, "model": FOUR, "peft": PEFT},
        ],
    ),
    "fsdp-quantized-storage": (
        [
            {"trainer": {"fsdp": True}, "model": FOUR, "peft": PEFT},
            {"trainer": {}, "launch": FSDP1, "model": FOUR | {"bnb_4bit_quant_storage": "uint8"}, "peft": PEFT},
            {"trainer": {}, "launch": FSDP1, "model": EIGHT, "peft": PEFT},
        ],
        [
            {"trainer": {"fsdp": True}, "model": STORED, "peft": PEFT},
            {"trainer": {}, "model": FOUR, "peft": PEFT, "processes": 4},
        ],
    ),
    "quantized-without-adapters": (
        [{"trainer": {"bf16": True}, "model": EIGHT}, {"sft": {}, "model": FOUR}],
        [
            {"trainer": {}, "model": FOUR, "peft": PEFT},
            {"accelerator": {}, "model": FOUR},
            _script("load_in_4bit=True"),
        ],
    ),
    "both-quantizations": (
        [{"model": FOUR | EIGHT, "peft": PEFT}, _script("load_in_8bit=True, load_in_4bit=True")],
        [{"model": FOUR | {"load_in_8bit": False}, "peft": PEFT}],
    ),
    "four-bit-options-without-load-in-4bit": (
        [
            _script('bnb_4bit_quant_type="nf4"'),
            _script("load_in_8bit=True, bnb_4bit_use_double_quant=True"),
            {"model": EIGHT | {"bnb_4bit_quant_type": "nf4"}},
        ],
        [
            _script('load_in_4bit=True, bnb_4bit_quant_type="nf4"'),
            _script('load_in_4bit=four, bnb_4bit_quant_type="nf4"'),
        ],
    ),
    "four-bit-computes-in-float32": (
        [_script("load_in_4bit=True"), _script('load_in_4bit=True, bnb_4bit_quant_type="nf4"')],
        [
            _script("load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16"),
            _script("load_in_8bit=True"),
            {"model": FOUR},
        ],
    ),
    "device-map-in-several-processes": (
        [
            {"trainer": {}, "model": {"device_map": "auto"}, "processes": 2},
            {
                "sft": {},
                "model": FOUR | {"device_map": "balanced"},
                "peft": PEFT,
                "processes": 8,
                "launcher": "torchrun",
            },
        ],
        [
            {"trainer": {}, "model": {"device_map": "auto"}, "processes": 1},
            {"trainer": {}, "model": {"device_map": {"": 0}}, "processes": 2},
            {"trainer": {}, "model": {"device_map": "auto"}},
        ],
    ),
}

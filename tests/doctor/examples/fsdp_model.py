"""Setups in which the checks of fsdp_model find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

SAVE = """
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", fsdp=True, fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"})
trainer = Trainer(model=model, args=args, train_dataset=rows)
trainer.train()
trainer.save_model("final")
"""


def _yaml(**keys: Any) -> dict[str, Any]:
    named = {f"fsdp_{key}": value for key, value in keys.items()}
    return {"launch": {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": named}}


WRAP = "transformer_layer_cls_to_wrap"
LORA = {"peft": {"r": 8}}
LOOP = {"accelerator": {"mixed_precision": "bf16"}}
SHARDED = {"trainer": {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}}
EXAMPLES = {
    "fsdp-wraps-unknown-class": (
        [
            _yaml(**{WRAP: "LlamaLayer"}) | {"model": {"model_type": "llama"}},
            _yaml(**{WRAP: "GPT2Layer"}) | {"model": {"config": {"model_type": "gpt2", "n_embd": 768}}},
        ],
        [
            _yaml(**{WRAP: "LlamaDecoderLayer"}) | {"model": {"model_type": "llama"}},
            _yaml(**{WRAP: "MyLayer"}) | {"model": {"model_type": "my-model"}},
            _yaml(**{WRAP: "MyLayer"}) | {"model": {"class": "AutoModelForCausalLM"}},
        ],
    ),
    "fsdp-wraps-nothing": (
        [_yaml(auto_wrap_policy="NO_WRAP"), _yaml(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=0)],
        [_yaml(auto_wrap_policy="TRANSFORMER_BASED_WRAP"), _yaml(auto_wrap_policy="SIZE_BASED_WRAP")],
    ),
    "fsdp1-adapters-without-orig-params": (
        [_yaml(version=1, use_orig_params=False) | LORA | LOOP, _yaml(use_orig_params="false") | LORA | LOOP],
        [
            _yaml(version=1, use_orig_params=True) | LORA | LOOP,
            _yaml(version=1, use_orig_params=False) | LORA | {"trainer": {"bf16": True}},
            _yaml(version=2, use_orig_params=False) | LORA | LOOP,
            _yaml(version=1, use_orig_params=False) | LOOP,
        ],
    ),
    "fsdp-saves-shards": (
        [
            SHARDED | {"script": SAVE},
            {"trainer": SHARDED["trainer"] | {"save_only_model": True}},
        ],
        [
            SHARDED,
            {"trainer": {"fsdp": True}, "script": SAVE},
        ],
    ),
}

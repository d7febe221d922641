"""Setups in which the checks of deepspeed_running find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

TRAINER = """
from transformers import AutoModelForTokenClassification, Trainer, TrainingArguments
args = TrainingArguments("out", deepspeed="ds.json")
model = AutoModelForTokenClassification.from_pretrained("bert-large-cased")
helper = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=dev)
{first}
helper.train()
helper.evaluate()
"""
BEFORE = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
args = TrainingArguments("out", deepspeed="ds.json")
"""
LOOP_BEFORE = """
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
accelerator = Accelerator()
"""
AFTER = """
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
"""
GENERATE = """
from accelerate import Accelerator
accelerator = Accelerator()
tokens = model.generate(**batch, max_new_tokens=20{synced})
"""
YAML = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True}}


def _json(stage: int = 3, **keys: Any) -> dict[str, Any]:
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    return {"zero_optimization": zero, "gradient_clipping": "auto"} | keys


def _trainer(first: str, deepspeed: dict[str, Any]) -> dict[str, Any]:
    return {"trainer": {}, "script": TRAINER.format(first=first), "deepspeed": deepspeed}


BLOCK = {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}
EXAMPLES = {
    "deepspeed-evaluates-before-training": (
        [
            _trainer("print(helper.predict(dev).metrics)", _json(1)),
            _trainer("before = helper.evaluate()", _json(**BLOCK)),
            _trainer("helper.evaluate()", _json(optimizer={"type": "AdamW"})),
        ],
        [
            _trainer("", _json(1)),
            _trainer("helper.evaluate()", _json()),
            _trainer("if only_evaluate:\n    helper.evaluate()", _json(1)),
        ],
    ),
    "zero3-model-before-arguments": (
        [
            {"trainer": {}, "script": BEFORE, "deepspeed": _json()},
            {"accelerator": {}, "script": LOOP_BEFORE, "launch": YAML},
        ],
        [
            {"accelerator": {}, "script": AFTER, "launch": YAML},
            {"trainer": {}, "script": BEFORE, "deepspeed": _json(2)},
        ],
    ),
    "zero3-generate-not-synced": (
        [
            {"accelerator": {}, "script": GENERATE.format(synced=", synced_gpus=False"), "launch": YAML},
            {"trainer": {}, "script": GENERATE.format(synced=", synced_gpus=False"), "deepspeed": _json()},
        ],
        [
            {"accelerator": {}, "script": GENERATE.format(synced=""), "launch": YAML},
            {"accelerator": {}, "script": GENERATE.format(synced=", synced_gpus=False"), "deepspeed": _json(2)},
        ],
    ),
    "deepspeed-checkpointing-block-unused": (
        [
            {"trainer": {}, "deepspeed": _json(activation_checkpointing={"partition_activations": True})},
            {"accelerator": {}, "deepspeed": _json(activation_checkpointing={"cpu_checkpointing": True})},
        ],
        [
            {"trainer": {}, "deepspeed": _json(activation_checkpointing={"profile": False})},
            {"deepspeed": _json(activation_checkpointing={"cpu_checkpointing": True})},
        ],
    ),
    "zero3-with-compile": (
        [
            {"trainer": {"torch_compile": True}, "deepspeed": _json()},
            {"sft": {"torch_compile": True}, "launch": YAML},
        ],
        [{"trainer": {"torch_compile": True}, "deepspeed": _json(2)}],
    ),
}

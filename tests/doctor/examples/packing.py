"""Setups in which the checks of packing find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_TRL = "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig({})\nSFTTrainer('m', args=args, train_dataset=rows{})\n"
_FLAT = {"flattening": True, "collator": "DataCollatorWithFlattening"}


def _loop(call: str, attention: str = "sdpa") -> dict[str, object]:
    text = (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "from transformers import AutoModelForCausalLM, DataCollatorWithFlattening\n"
        f"model = AutoModelForCausalLM.from_pretrained('m', attn_implementation='{attention}')\n"
        "loader = DataLoader(rows, batch_size=4, collate_fn=DataCollatorWithFlattening())\n"
        f"for batch in loader:\n    loss = {call}.loss\n    loss.backward()\n"
    )
    return {"files": {"train.py": text}}


EXAMPLES = {
    "packed-documents-see-each-other": (
        [
            {"trainer": {"bf16": True}, "data": _FLAT, "model": {"attn_implementation": "sdpa"}},
            {
                "data": {"packing": True, "keys": ["input_ids", "attention_mask", "labels"]},
                "model": {"attn_implementation": "eager"},
            },
            _loop("model(**batch, use_cache=True)"),
        ],
        [
            {"data": _FLAT, "model": {"attn_implementation": "flash_attention_3"}},
            {"data": {"padding": "longest"}, "model": {"attn_implementation": "sdpa"}},
            _loop("model(**batch, use_cache=True)", "flash_attention_2"),
        ],
    ),
    "packing-across-documents": (
        [
            {"sft": {"packing": True, "packing_strategy": "wrapped"}},
            {"sft": {"packing": True, "packing_strategy": "ffd", "max_length": 512}},
        ],
        [{"sft": {"packing": True}}, {"sft": {"packing_strategy": "wrapped"}}],
    ),
    "packing-without-length": (
        [
            {"sft": {"packing": True, "max_length": None}},
            {"sft": {"padding_free": True}},
            {"files": {"a.py": _TRL.format("packing=True, max_length=None", "")}},
        ],
        [{"sft": {"packing": True, "max_length": 512}}, {"sft": {"padding_free": True, "max_length": None}}],
    ),
    "collator-beside-padding-free": (
        [
            {"files": {"a.py": _TRL.format("packing=True", ", data_collator=collate")}},
            {"files": {"b.py": _TRL.format("padding_free=True, max_length=None", ", data_collator=collate")}},
        ],
        [
            {"files": {"a.py": _TRL.format("packing=True, packing_strategy='wrapped'", ", data_collator=collate")}},
            {"files": {"b.py": _TRL.format("packing=True", ", data_collator=None")}},
        ],
    ),
    "padding-free-of-single-rows": (
        [
            {"sft": {"padding_free": True, "max_length": None, "per_device_train_batch_size": 1}},
            {"files": {"a.py": _TRL.format("padding_free=True, max_length=None, per_device_train_batch_size=1", "")}},
        ],
        [{"sft": {"padding_free": True, "max_length": None, "per_device_train_batch_size": 2}}],
    ),
    "packed-evaluation": (
        [
            {"sft": {"packing": True, "eval_strategy": "epoch", "per_device_eval_batch_size": 4}},
            {"files": {"a.py": _TRL.format("packing=True, eval_strategy='steps'", ", eval_dataset=rows")}},
        ],
        [{"sft": {"packing": True, "eval_packing": False, "eval_strategy": "epoch"}}, {"sft": {"packing": True}}],
    ),
    "unknown-sft-loss": (
        [{"sft": {"loss_type": "ce"}}, {"files": {"a.py": _TRL.format("loss_type='sigmoid'", "")}}],
        [{"sft": {"loss_type": "dft"}}, {"sft": {}}],
    ),
    "formatting-beside-completion-loss": (
        [
            {"files": {"a.py": _TRL.format("completion_only_loss=True", ", formatting_func=chat")}},
            {
                "files": {
                    "b.py": _TRL.format("completion_only_loss=True, max_length=64", ", formatting_func=lambda r: r")
                }
            },
        ],
        [
            {"files": {"a.py": _TRL.format("completion_only_loss=False", ", formatting_func=chat")}},
            {"files": {"b.py": _TRL.format("completion_only_loss=True", "")}},
        ],
    ),
}

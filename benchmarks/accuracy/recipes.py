"""A row of Hugging Face's Trainer -> a plan, a model as its recipe made it, and a batch."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from attention_classes import flash_classes
from foak import fuse_adapters, fused, patched
from rows import Row

from hf_efficient import make_plan
from hf_efficient.memory.assemble import assemble
from hf_efficient.memory.estimate import estimate
from hf_efficient.memory.reading import read
from hf_efficient.memory.results import Batch, Estimate
from hf_efficient.plan import Plan
from hf_efficient.trick import Trick

FUSED = ("q_proj", "k_proj", "v_proj")
TARGETS: dict[str, tuple[str, ...]] = {
    "qkv": FUSED, "c_attn": FUSED, "c_proj": ("o_proj", "down_proj"), "w1": ("up_proj",), "w2": ("gate_proj",),
    "q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj",), "gate": ("gate_proj",),
    "up": ("up_proj",), "down": ("down_proj",),
}  # fmt: skip
OPTIMIZERS = {
    "adamw_torch fused": "adamw_torch_fused", "adamw fused": "adamw_torch_fused", "adafactor": "adafactor",
    "adamw_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit",
}  # fmt: skip
DROPOUT = 0.1
"""lora_dropout of fms-acceleration's scenarios.yaml; it does not change the peak of a LoRA row."""


def traced(row: Row, config: Path) -> Estimate:
    """Return the estimate of a row, by the product's own path."""
    plan = plan_of(row)
    model: Any = _folder(config)
    with patched(row), flash_classes(row.attention.startswith("flash")):
        if row.lora_r or row.kernels or row.model.startswith("santacoder"):
            model = prepared(row, plan, model)
        batch = Batch(size=row.batch, seq_len=row.seq, padding=row.varies)
        return estimate(plan, model, batch=batch, gpus=row.ranks)


def plan_of(row: Row) -> Plan:
    """Return the row's settings as a plan, in the words of the tricks."""
    tricks = [
        _trick("precision", model={"dtype": row.dtype}, trainer=_mixed(row)),
        _trick("optimizer", optimizer={"name": _optimizer(row)}),
        _trick("accumulation", trainer={"gradient_accumulation_steps": row.accumulation}),
    ]
    if row.attention.startswith(("eager", "flash")):
        kind = "eager" if row.attention.startswith("eager") else "flash_attention_2"
        tricks.append(_trick("attention", model={"attn_implementation": kind}))
    if row.checkpointing:
        # the default of transformers 4; fsdp_qlora wraps layers inside of FSDP's units, which then keep no inputs
        inside = "AnswerDotAI" in row.source
        reentrant = {"activation_checkpointing_kwargs": {"use_reentrant": not inside}}
        tricks.append(_trick("checkpointing", trainer={"activation_checkpointing": True, **reentrant}))
    if row.sharded:
        apart = {"ignored_modules": r".*\.lora_[AB]"} if row.kernels and row.four_bits else {}
        sharing = {"trainer": {"fsdp_config": {"version": 1, **apart}}, "launch": {"distributed_type": "FSDP"}}
        tricks.append(_trick("sharding", **sharing))
    if row.four_bits:
        # bnb_4bit_use_double_quant in fms-acceleration's framework_plugin_bnb.py
        double = row.double or ("bnb" in row.notes and "optimum-benchmark" not in row.source)
        quantized = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}
        quantized["bnb_4bit_compute_dtype"] = row.dtype
        tricks.append(_trick("adapter", model={"quantization_config": quantized}))
    return make_plan(*tricks)


def _trick(family: str, **targets: Any) -> Trick:
    return Trick(name=family, family=family, saves="", costs="", numerics="exact", **targets)


def _mixed(row: Row) -> dict[str, bool]:
    return {{"bfloat16": "bf16", "float16": "fp16"}[row.autocast]: True} if row.autocast else {}


def _optimizer(row: Row) -> str:
    return next((name for start, name in OPTIMIZERS.items() if row.optimizer.startswith(start)), "adamw_torch")


def _folder(config: Path) -> str:
    folder = tempfile.mkdtemp()
    values = json.loads(config.read_text())
    Path(folder, "config.json").write_text(json.dumps(values))
    return folder


def prepared(row: Row, plan: Plan, folder: str) -> torch.nn.Module:
    """Return the model with its adapter, in float32 as PEFT makes it, and embeddings through which gradients go."""
    model: Any = assemble(plan, read(plan), folder)
    if type(model).__name__.startswith("GPTBigCode"):
        model.transformer.forward = MethodType(_with_a_cache, model.transformer)
    if row.attention.startswith("flash") and not type(model).__name__.startswith("GPTBigCode"):
        for module in model.modules():  # before 4.48 a model keeps what it was built with, and makes a mask for sdpa
            if "_attn_implementation" in vars(module):
                module._attn_implementation = "flash_attention_2"
    if row.kernels:
        model = fused(model)
    if row.lora_r:
        from peft import LoraConfig, get_peft_model

        targets: Any = [name for short in row.lora_targets for name in TARGETS.get(short, (short,))]
        if row.lora_targets == ("all linear",):
            targets = "all-linear"
        if type(model).__name__.startswith("GPTBigCode"):
            targets = ["c_attn"]
        config = LoraConfig(
            r=row.lora_r,
            lora_alpha=16,
            lora_dropout=DROPOUT,
            target_modules=targets,
            modules_to_save=["embed_tokens", "lm_head"] if row.saved else None,
            task_type="CAUSAL_LM",
        )
        with torch.device("meta"):
            model = get_peft_model(model, config)
        if "optimum-benchmark" in row.source and not row.four_bits:  # PEFT of 2023 has the dtype of the weights beside
            for parameter in model.parameters():
                parameter.data = parameter.data.to(getattr(torch, row.dtype))
        if row.checkpointing:
            model.enable_input_require_grads()
        if row.kernels and row.four_bits:
            model = fuse_adapters(model)
    return model


def _with_a_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep each layer's keys and values, which nobody reads.

    gpt_bigcode alone does so with checkpointing, and Trainer of transformers 4.48 leaves `use_cache` on.
    """
    return type(self).forward(self, *args, **kwargs | {"use_cache": True})

"""Rows of litgpt: its recipe of LoRA, with the longest sample first, before there is any optimizer state.

Sources: litgpt/finetune/lora.py, litgpt/utils.py (chunked_cross_entropy) and Lightning's BitsandbytesPrecision, which
quantizes every linear layer, the head's too, and its FSDPStrategy with activation checkpointing of each block.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import direct
import torch
from litgpt_lora import Shape
from litgpt_model import GPT
from rows import Row
from torch import nn

from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.quantize import pack, written_out
from hf_efficient.memory.reading import Run
from hf_efficient.memory.step import Step


def traced(row: Row, config: Path) -> Any:
    """Return the peak of a row."""
    with torch.device("meta"):
        torch.set_default_dtype(torch.bfloat16)
        model = GPT(Shape.of(json.loads(config.read_text())), row.lora_r, row.lora_targets).train()
        torch.set_default_dtype(torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    if row.four_bits:
        quantize(model, double=row.double)
    checkpointed = {"every_n_layers": 1, "offload": False, "reentrant": False} if row.checkpointing else None
    run = Run(
        optimizer={"name": "adamw_torch"}, max_grad_norm=0.0, checkpointing=checkpointed, accumulation=row.accumulation
    )
    shares = fsdp(model, {"version": 1}, run, row.ranks) if row.sharded else None
    model.gradient_checkpointing = row.checkpointing
    model.follows = "capped" in row.notes  # where rows are cut to one length, two of the longest follow each other
    model.keeps_inputs = row.four_bits
    step = Step(keep_outputs=True, checkpointing=row.checkpointing)
    # the longest sample comes first, and before it there are no gradients
    with patch("hf_efficient.memory.units.keep_whole_gradients", lambda *_: None):
        return direct.peak(row, model, run, step=step, shares=shares, update=False)


class _Product(torch.autograd.Function):
    """A product with 4-bit weights as bitsandbytes before 0.43.2 has it: its input is kept, though nobody needs it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: Any, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.state = state
        ctx.kept = x
        return nn.functional.linear(x, written_out(state, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out = grads[0] @ written_out(ctx.state, grads[0].dtype)
        ctx.kept = None
        return out, None, None


class Linear4(nn.Module):
    """A frozen layer in 4 bits."""

    def __init__(self, layer: nn.Linear, how: dict[str, Any]) -> None:
        super().__init__()
        self.weight, self.out_features = layer.weight, layer.out_features
        self.bias = None
        pack(self, how, torch.float16)  # _quantize_weight of BitsandbytesPrecision goes through half
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(x, self.quant_state, self.bias)


def quantize(model: nn.Module, *, double: bool) -> None:
    """Put 4-bit layers in the place of all linear ones."""
    how = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Linear4(module, how))

"""Rows of nanoGPT and llm.c: GPT-2 as each has it; torch.compile is not imitated.

Sources: nanoGPT's model.py and train.py (no biases, 50304 words, fp32 weights under autocast, DDP); llm.c's
train_gpt2.cu (biases, 50304 words, all in bf16 with float32 masters, ZeRO-1, the loss writes its gradient over the
logits, GELU by tanh, which is computed again in the backward pass).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import direct
import torch
from mpt import FusedLoss
from rows import Row
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hf_efficient.memory.reading import Run
from hf_efficient.memory.shares import whole
from hf_efficient.memory.step import Step
from hf_efficient.memory.zero import zero

WORDS = 50304
"""Both pad the vocabulary to a multiple of 64 and 128."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.tanh = heads, bias
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.c_attn, self.c_proj = (nn.Linear(width, times * width, bias=bias) for times in (3, 1))
        self.c_fc, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(out.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh" if self.tanh else "none"))


class Gpt2(nn.Module):
    """The whole model; `by_hand`: as llm.c has it."""

    def __init__(self, c: dict[str, Any], length: int, by_hand: bool) -> None:
        super().__init__()
        width = c["n_embd"]
        self.by_hand = by_hand
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, c["n_head"], by_hand) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(width, bias=by_hand)

    def forward(self, idx: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        logits = logits.view(-1, logits.shape[-1])
        return {"loss": FusedLoss.apply(logits) if self.by_hand else F.cross_entropy(logits, labels.view(-1))}


def traced(row: Row, config: Path) -> Any:
    """Return the peak of a row."""
    by_hand = "hand-written" in row.kernels
    with torch.device("meta"):
        model = Gpt2(json.loads(config.read_text()), row.seq, by_hand).train()
    run = Run(
        optimizer={"name": "adamw_torch_fused"},
        autocast=None if by_hand else "bfloat16",
        accumulation=row.accumulation,
    )
    if by_hand:
        shares = zero(model.to(torch.bfloat16), {"stage": 1}, row.ranks)
        return direct.peak(row, model, run, step=Step(), shares=shares)
    step = Step(autocast=torch.bfloat16, accumulating=row.accumulation > 1)
    return direct.peak(row, model, run, step=step, shares=whole(model, row.ranks))

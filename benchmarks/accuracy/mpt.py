"""Rows of llm-foundry: its MPT under Composer's FSDP, each block wrapped and checkpointed.

Sources: llmfoundry/models/mpt/modeling_mpt.py, layers/{attention,blocks,ffn,norm,custom_embedding}.py,
scripts/train/benchmarking/submit_benchmarks.py, composer/trainer/mosaic_fsdp_utils.py (get_mixed_precision). Under
`DEFAULT` and under `PURE` weights are gathered in 16 bits and stored in float32; `DEFAULT` reduces in float32, which
`fsdp` has not. So all computes in 16 bits: low_precision_layernorm casts nothing more, and the fused loss reads the
logits as they are.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import direct
import torch
from rows import Row
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.reading import Run
from hf_efficient.memory.step import Step


class FusedLoss(torch.autograd.Function):
    """Cross entropy of flash-attn: one pass over the logits, and one that writes their gradient from them.

    The operations inside stand for these passes: they read and write what the kernels do, and compute nothing right.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        rows = torch.logsumexp(logits, -1).float()
        ctx.save_for_backward(logits, rows)
        return rows.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.exp(ctx.saved_tensors[0])


class SharedEmbedding(nn.Embedding):
    """The embedding, and the head by its weights; FSDP wraps it by itself."""

    def forward(self, x: torch.Tensor, unembed: bool = False) -> torch.Tensor:
        return F.linear(x, self.weight) if unembed else super().forward(x)


class Positions(nn.Embedding):
    """Learned positions, which FSDP wraps by themselves."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Wqkv, self.out_proj = (nn.Linear(width, times * width, bias=False) for times in (3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in self.Wqkv(x).chunk(3, dim=2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(out.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attn = Attention(width, heads)
        self.up_proj = nn.Linear(width, ratio * width, bias=False)
        self.down_proj = nn.Linear(ratio * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class Mpt(nn.Module):
    """The whole model; labels are rolled, so that all logits have a loss."""

    _no_split_modules = ("Block", "SharedEmbedding", "Positions")

    def __init__(self, c: dict[str, Any], length: int) -> None:
        super().__init__()
        width = c["d_model"]
        self.wte, self.wpe = SharedEmbedding(c["vocab_size"], width), Positions(length, width)
        self.blocks = nn.ModuleList(Block(width, c["n_heads"], c["expansion_ratio"]) for _ in range(c["n_layers"]))
        self.norm_f = nn.LayerNorm(width, bias=False)
        self.gradient_checkpointing = False

    def forward(self, idx: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]).unsqueeze(0))
        for block in self.blocks:
            x = self._gradient_checkpointing_func(block.__call__, x) if self.gradient_checkpointing else block(x)
        logits = self.wte(self.norm_f(x), True)
        return {"loss": FusedLoss.apply(logits.view(-1, logits.shape[-1]))}


def traced(row: Row, config: Path) -> Any:
    """Return the peak of a row; Composer clips gradients to a norm of one, and reduces them in every micro-batch."""
    with torch.device("meta"):
        model = Mpt(json.loads(config.read_text()), row.seq).train()
    checkpointed = {"every_n_layers": 1, "offload": False, "reentrant": False} if row.checkpointing else None
    run = Run(
        optimizer={"name": "adamw_torch"},
        autocast="bfloat16",
        checkpointing=checkpointed,
        accumulation=row.accumulation,
    )
    shares = fsdp(model, {"version": 1}, replace(run, accumulation=1), row.ranks)
    model.gradient_checkpointing = row.checkpointing
    return direct.peak(row, model, run, step=Step(checkpointing=row.checkpointing), shares=shares)

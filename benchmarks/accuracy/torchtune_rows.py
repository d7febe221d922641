"""Rows of torchtune: its model's code, loss, and optimizer inside the backward pass; torch.compile is not imitated.

Sources: torchtune/modules/attention.py, rms_norm.py, position_embeddings.py, transformer.py,
loss/ce_chunked_output_loss.py and recipes/full_finetune_single_device.py.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import direct
import torch
from rows import Row
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hf_efficient.memory.reading import Run
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.shares import Shares, bytes_of, trained
from hf_efficient.memory.step import Step


class _CompiledLoss(torch.autograd.Function):
    """The loss as torch.compile fuses it: no float32 copy is written, two numbers a row are kept beside the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, torch.empty(logits.shape[0], 2, dtype=torch.float32))
        return torch.empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


CHUNKS = 8
"""num_output_chunks of CEWithChunkedOutputLoss."""
ALPHA = 2.0


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
        return normed * self.scale


class LoRALinear(nn.Module):
    def __init__(self, wide: int, out: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, wide))
        self.lora_a, self.lora_b = nn.Linear(wide, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + ALPHA * self.lora_b(self.lora_a(x))


class Attention(nn.Module):
    def __init__(self, c: dict[str, Any], rank: int, on: tuple[str, ...]) -> None:
        super().__init__()
        width, self.heads, self.groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head = c.get("head_dim") or width // self.heads
        sizes = {"q": self.heads, "k": self.groups, "v": self.groups}
        for name, count in sizes.items():
            layer = (
                LoRALinear(width, count * self.head, rank)
                if name in on and rank
                else nn.Linear(width, count * self.head, bias=False)
            )
            setattr(self, f"{name}_proj", layer)
        self.output_proj = nn.Linear(self.heads * self.head, width, bias=False)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q = turned(self.q_proj(x).view(rows, length, self.heads, self.head), cache).transpose(1, 2)
        k, v = self.k_proj(x), self.v_proj(x)
        k = turned(k.view(rows, length, -1, self.head), cache).view(rows, length, self.groups, 1, self.head)
        v = v.view(rows, length, self.groups, 1, self.head)
        each = self.heads // self.groups
        k, v = (
            t.expand(rows, length, self.groups, each, self.head).reshape(rows, length, -1, self.head).transpose(1, 2)
            for t in (k, v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output_proj(out.transpose(1, 2).contiguous().view(rows, length, -1))


def turned(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    shaped = x.float().reshape(*x.shape[:-1], -1, 2)
    cache = cache.view(-1, shaped.size(1), 1, shaped.size(3), 2)
    out = torch.stack(
        [
            shaped[..., 0] * cache[..., 0] - shaped[..., 1] * cache[..., 1],
            shaped[..., 1] * cache[..., 0] + shaped[..., 0] * cache[..., 1],
        ],
        -1,
    )
    return out.flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, c: dict[str, Any], rank: int, on: tuple[str, ...]) -> None:
        super().__init__()
        width, inner = c["hidden_size"], c["intermediate_size"]
        self.attn, self.sa_norm, self.mlp_norm = Attention(c, rank, on), RMSNorm(width), RMSNorm(width)
        self.w1, self.w2, self.w3 = (
            nn.Linear(*s, bias=False) for s in ((width, inner), (inner, width), (width, inner))
        )

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        h = self.attn(self.sa_norm(x), cache) + x
        y = self.mlp_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Decoder(nn.Module):
    """The whole model; `chunks` 1: the loss in one piece. A tied head has the embedding's weights."""

    def __init__(self, c: dict[str, Any], row: Row) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, row.lora_r, row.lora_targets) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])
        self.output = None if c.get("tie_word_embeddings") else nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.head, self.chunks = (
            c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
            CHUNKS if "chunked" in row.kernels else 1,
        )
        self.gradient_checkpointing, self.compiled = row.checkpointing, "compile" in row.kernels

    def forward(self, idx: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        cache = torch.empty(*idx.shape, self.head // 2, 2, dtype=torch.float32)  # by the positions of packed rows
        h = self.tok_embeddings(idx)
        for layer in self.layers:
            h = (
                self._gradient_checkpointing_func(layer.__call__, h, cache)
                if self.gradient_checkpointing
                else layer(h, cache)
            )
        h = self.norm(h)
        weight = self.tok_embeddings.weight if self.output is None else self.output.weight
        if self.chunks == 1:
            logits = F.linear(h, weight)
            if self.compiled:
                return {"loss": _CompiledLoss.apply(logits.reshape(-1, logits.shape[-1]))}
            logits = logits.float()
            return {"loss": F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))}
        pieces = [F.linear(piece, weight) for piece in h.tensor_split(self.chunks, dim=1)]
        flat = [piece.reshape(-1, piece.shape[-1]) for piece in pieces]
        del pieces
        total = torch.zeros(())
        for piece, label in zip(flat, labels.tensor_split(self.chunks, dim=1), strict=True):
            one = (
                _CompiledLoss.apply(piece)
                if self.compiled
                else F.cross_entropy(piece.float(), label.reshape(-1), reduction="sum")
            )
            total = total + one
        return {"loss": total}


def traced(row: Row, config: Path) -> Any:
    """Return the peak of a row."""
    with torch.device("meta"):
        torch.set_default_dtype(torch.bfloat16)
        model = Decoder(json.loads(config.read_text()), row).train()
        torch.set_default_dtype(torch.float32)
    if row.lora_r:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "lora_" in name
    inside = "in backward" in row.optimizer or "in_bwd" in row.optimizer
    name = (
        "adamw_8bit"
        if "8-bit" in row.optimizer
        else "paged_adamw_8bit"
        if "8bit" in row.optimizer
        else "adamw_torch_fused"
    )
    checkpointed = {"every_n_layers": 1, "offload": row.offload, "reentrant": False} if row.checkpointing else None
    run = Run(optimizer={"name": name}, max_grad_norm=0.0, checkpointing=checkpointed)
    step = Step(checkpointing=row.checkpointing, offload=row.offload)
    updated = [weight._replace(embedding=False) for weight in trained(model)]  # bitsandbytes alone has no rule for them
    shares = Shares(weights=bytes_of(model), updated=updated, wrap=update_at_once if inside else None)
    return direct.peak(row, model, run, step=step, shares=shares)


def update_at_once(model: nn.Module, recorder: Recorder) -> None:
    """Let each gradient go when its weight is updated: register_optim_in_bwd_hooks."""

    def drop(weight: torch.Tensor) -> None:
        weight.grad = None

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(drop))

"""Rows of torchtitan: its Llama under FSDP2 in mixed precision; torch.compile and fp8 are not imitated.

Sources: torchtitan/models/llama/model.py, parallelisms/parallelize_llama.py (checkpointing of every layer, of every
second, or per operation: attention and every second product are kept) and train.py. FSDP2 reduces in float32 there,
which `fsdp` has not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import direct
import torch
from rows import Row
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.reading import Run
from hf_efficient.memory.step import Step

aten = torch.ops.aten


class _Kept(torch.autograd.Function):
    """Attention that was kept: a layer that is computed again hands over what the kernel saved, and computes nothing.

    Its operations are those of the kernel's first pass, whose results are found among what was kept.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AssertionError("the gradient goes back through the first pass")


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return normed * self.weight


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        width, self.heads, self.groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head = width // self.heads
        self.wq, self.wk, self.wv = (
            nn.Linear(width, n * self.head, bias=False) for n in (self.heads, self.groups, self.groups)
        )
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, kept: Kept | None) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (w(x).view(rows, length, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        each = self.heads // self.groups
        if each > 1:
            k, v = (t[:, :, :, None].expand(-1, -1, -1, each, -1).reshape(rows, length, -1, self.head) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = kept.attention(q, k, v) if kept else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(rows, length, -1))


class Layer(nn.Module):
    def __init__(self, c: dict[str, Any], checkpointing: str) -> None:
        super().__init__()
        width, inner = c["hidden_size"], c["intermediate_size"]
        self.attention, self.attention_norm, self.ffn_norm = Attention(c), RMSNorm(width), RMSNorm(width)
        self.w1, self.w2, self.w3 = (
            nn.Linear(*s, bias=False) for s in ((width, inner), (inner, width), (width, inner))
        )
        self.checkpointing = checkpointing

    def forward(self, x: torch.Tensor, turns: torch.Tensor, kept: Kept | None = None) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), turns, kept)
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Kept:
    """What a layer keeps where checkpointing is per operation: its attention and every second product."""

    def __init__(self) -> None:
        self.again = False
        self.products = {False: 0, True: 0}

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.again:
            out: torch.Tensor = _Kept.apply(q, k, v)
            return out
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def policy(self, context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        """Say of an operation whether its result is kept; storages are made empty in the kernel of attention alone."""
        self.products[context.is_recompute] += operation is aten.mm.default
        product = operation is aten.mm.default and self.products[context.is_recompute] % 2
        if product or operation in (aten.empty_like.default, aten.empty.memory_format):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def contexts(self, call: Any) -> tuple[Any, Any]:
        """Return the contexts of the first pass and of the second, which `call`, a checkpoint of `Step`, records."""
        first, taken = create_selective_checkpoint_contexts(self.policy)
        return first, self._second(call.keywords["context_fn"]()[1], taken)

    @contextlib.contextmanager
    def _second(self, recorded: Any, taken: Any) -> Iterator[None]:
        with recorded, taken:
            self.again = True
            yield


class Llama(nn.Module):
    """The whole model."""

    _no_split_modules = ("Layer",)
    _gradient_checkpointing_func: Callable[..., Any]

    def __init__(self, c: dict[str, Any], row: Row) -> None:
        super().__init__()
        width, words, depth = c["hidden_size"], c["vocab_size"], c["num_hidden_layers"]
        kinds = [row.checkpointed(place) for place in range(depth)]
        self.tok_embeddings = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(c, kind) for kind in kinds)
        self.norm, self.output = RMSNorm(width), nn.Linear(width, words, bias=False)
        self.gradient_checkpointing = any(kinds)
        self.pairs = width // c["num_attention_heads"] // 2

    def get_input_embeddings(self) -> nn.Module:
        return self.tok_embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def forward(self, idx: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        turns = torch.empty(idx.shape[1], self.pairs, dtype=torch.complex64)
        h = self.tok_embeddings(idx)
        for layer in self.layers:
            h = self.layer(layer, h, turns)
        logits = self.output(self.norm(h)).float()
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))}

    def layer(self, layer: Any, h: torch.Tensor, turns: torch.Tensor) -> Any:
        """Compute a layer with its kind of checkpointing."""
        if layer.checkpointing == "all":
            return self._gradient_checkpointing_func(layer.__call__, h, turns)
        if layer.checkpointing == "per-op":
            kept, call = Kept(), self._gradient_checkpointing_func
            return checkpoint(
                layer.__call__, h, turns, kept, use_reentrant=False, context_fn=lambda: kept.contexts(call)
            )
        return layer(h, turns)


def traced(row: Row, config: Path) -> Any:
    """Return the peak of a row."""
    with torch.device("meta"):
        model = Llama(json.loads(config.read_text()), row).train()
    checkpointed = {"every_n_layers": 1, "offload": False, "reentrant": False} if model.gradient_checkpointing else None
    name = "adamw_torch_fused" if "fused" in row.optimizer else "adamw_torch"
    run = Run(optimizer={"name": name}, autocast="bfloat16", checkpointing=checkpointed, accumulation=row.accumulation)
    shares = fsdp(model, {"version": 2}, run, row.ranks)
    step = Step(checkpointing=model.gradient_checkpointing)
    return direct.peak(row, model, run, step=step, shares=shares)

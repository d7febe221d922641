"""The model of litgpt, written anew after litgpt/model.py, for its memory."""

from __future__ import annotations

from typing import Any

import torch
from litgpt_lora import LoRALinear, LoRAQKV, Shape
from torch import nn
from torch.nn import functional as F  # noqa: N812

CHUNK = 128


class RMSNorm(nn.Module):
    """In float32; Gemma's weights are an offset to one."""

    def __init__(self, size: int, offset: bool) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.ones(size)), offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, x.float()
        normed = (x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6)).to(dtype)
        return normed * (1 + self.weight) if self.offset else normed * self.weight


class Attention(nn.Module):
    def __init__(self, s: Shape, rank: int, on: set[str]) -> None:
        super().__init__()
        self.s = s
        self.attn = LoRAQKV(s, rank, ("q" in on, "k" in on, "v" in on))
        self.proj = LoRALinear(s.heads * s.head, s.width, rank if "o" in on else 0, s.bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        s, (rows, length, _) = self.s, x.shape
        each = s.heads // s.groups
        qkv = self.attn(x).view(rows, length, s.groups, each + 2, s.head).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((each, 1, 1), dim=2)
        if s.groups != s.heads:
            k, v = (t.expand(rows, s.groups, each, length, s.head) for t in (k, v))
        q, k, v = (t.reshape(rows, -1, length, s.head) for t in (q, k, v))
        turned = int(s.rotary * s.head)
        q, k = (torch.cat((rope(t[..., :turned], cos, sin), t[..., turned:]), dim=-1) for t in (q, k))
        y = capped(q, k, v, s.softcap) if s.softcap else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(rows, length, s.heads * s.head))


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (rotated * sin)).to(x.dtype)


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    """Attention by hand, as Gemma 2's capped scores need it."""
    scores = torch.tanh((q @ k.mT * 0.1) / cap) * cap
    scores = scores + torch.ones(q.shape[2], q.shape[2], dtype=q.dtype).triu(diagonal=1)
    return F.softmax(scores, dim=-1, dtype=torch.float).to(q.dtype) @ v


class MLP(nn.Module):
    def __init__(self, s: Shape, rank: int) -> None:
        super().__init__()
        self.kind = s.kind
        self.fc_1 = LoRALinear(s.width, s.inner, rank, s.bias)
        self.fc_2 = LoRALinear(s.width, s.inner, rank, s.bias) if not s.parallel else None
        self.proj = LoRALinear(s.inner, s.width, rank, s.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fc_2 is None:
            return self.proj(F.gelu(self.fc_1(x), approximate="tanh" if self.kind == "phi" else "none"))
        first, second = self.fc_1(x), self.fc_2(x)
        return self.proj((F.gelu(first, approximate="tanh") if "gemma" in self.kind else F.silu(first)) * second)


class Block(nn.Module):
    def __init__(self, s: Shape, rank: int, on: set[str]) -> None:
        super().__init__()
        self.s = s
        self.norm_1, self.attn = norm(s), Attention(s, rank, on)
        self.norm_2 = None if s.shared_norm else norm(s)
        self.mlp = MLP(s, rank if "mlp" in on else 0)
        self.after = nn.ModuleList([norm(s), norm(s)]) if s.kind == "gemma2" else None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first = self.norm_1(x)
        h = self.attn(first, cos, sin)
        if self.after is not None:
            h = self.after[0](h)
        if self.s.parallel:
            return self.mlp(first if self.norm_2 is None else self.norm_2(x)) + h + x
        x = h + x
        out = self.mlp(self.norm_2(x))
        return (self.after[1](out) if self.after is not None else out) + x


def norm(s: Shape) -> nn.Module:
    return nn.LayerNorm(s.width) if s.parallel else RMSNorm(s.width, "gemma" in s.kind)


class GPT(nn.Module):
    """The whole model; its head has weights of its own, and logits and loss come in pieces of 128 tokens."""

    _no_split_modules = ("Block",)

    def __init__(self, s: Shape, rank: int, targets: tuple[str, ...]) -> None:
        super().__init__()
        on = set(targets)
        self.s = s
        self.lm_head = LoRALinear(s.width, s.words, rank if "lm_head" in on else 0, s.kind == "phi")
        self.wte = nn.Embedding(s.words, s.width)
        self.h = nn.ModuleList(Block(s, rank, on) for _ in range(s.layers))
        self.ln_f = norm(s)
        self.gradient_checkpointing = False
        self.follows, self.keeps_inputs = False, False
        """Whether a micro-batch of this size came just before, and whether its graph still holds inputs."""

    def held(self, idx: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return what the loop's variables hold of the micro-batch before, until they get new values.

        `logits` and `loss` of litgpt/finetune/lora.py. The graph of a loss keeps what bitsandbytes before 0.43.2 hangs
        on its nodes: the input of each 4-bit layer, which autograd does not let go after the backward pass.
        """
        s, count = self.s, idx.numel()
        if not self.follows:
            return None, None
        logits = torch.empty(count * s.words, dtype=torch.float32)
        each = s.width * (1 if s.shared_norm else 2) + s.heads * s.head + s.inner
        inputs = torch.empty(count * (each * s.layers + s.width), dtype=torch.bfloat16) if self.keeps_inputs else None
        return logits, inputs

    def forward(self, idx: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        turned = int(self.s.rotary * self.s.head)
        cos, sin = (torch.empty(idx.shape[1], turned, dtype=torch.float32) for _ in range(2))
        old_logits, old_inputs = self.held(idx)
        x = self.wte(idx)
        if "gemma" in self.s.kind:
            x = x * 45.0
        for block in self.h:
            x = (
                self._gradient_checkpointing_func(block.__call__, x, cos, sin)
                if self.gradient_checkpointing
                else block(x, cos, sin)
            )
        x = self.ln_f(x)
        logits = [self.capped(self.lm_head(part)) for part in x.split(CHUNK, dim=1)]
        logits = [piece.float() for piece in logits]  # Fabric's convert_output, when the model is left
        del old_logits
        loss = loss_of(logits, labels)
        del old_inputs
        return {"loss": loss, "logits": logits}

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.tanh(logits / 30.0) * 30.0 if self.s.softcap else logits


def loss_of(logits: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Return the loss, a piece at a time: chunked_cross_entropy."""
    short = [*logits[:-1], logits[-1][..., :-1, :]]
    targets = labels[..., 1:].split(CHUNK, dim=1)
    pieces = [
        F.cross_entropy(piece.reshape(-1, piece.shape[-1]), target.reshape(-1), reduction="none")
        for piece, target in zip(short, targets, strict=True)
    ]
    return torch.cat(pieces).sum() / labels.numel()

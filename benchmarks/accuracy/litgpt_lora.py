"""What litgpt's model is made of: its facts, and its own LoRA, written anew after litgpt/lora.py, for its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

DROPOUT = 0.05
"""lora_dropout of litgpt/finetune/lora.py and of the config_hub."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The facts of a model."""

    kind: str
    width: int
    layers: int
    heads: int
    groups: int
    head: int
    inner: int
    words: int
    bias: bool
    parallel: bool
    shared_norm: bool
    rotary: float
    softcap: float | None

    @staticmethod
    def of(config: dict[str, Any]) -> Shape:
        """Return the facts of a config.json."""
        kind = config["model_type"]
        heads, width = config["num_attention_heads"], config["hidden_size"]
        parallel = kind in ("phi", "gpt_neox")
        return Shape(
            kind=kind,
            width=width,
            layers=config["num_hidden_layers"],
            heads=heads,
            groups=config.get("num_key_value_heads") or heads,
            head=config.get("head_dim") or width // heads,
            inner=config["intermediate_size"],
            words=config["vocab_size"],
            bias=parallel,
            parallel=parallel,
            shared_norm=kind == "phi",
            rotary=config.get("partial_rotary_factor") or config.get("rotary_pct") or 1.0,
            softcap=config.get("attn_logit_softcapping"),
        )


class LoRALinear(nn.Module):
    """A frozen layer, and two small ones whose product is added; rank 0: none."""

    def __init__(self, wide: int, out: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.linear, self.rank = nn.Linear(wide, out, bias=bias), rank
        if rank:
            self.lora_A, self.lora_B = nn.Parameter(torch.empty(rank, wide)), nn.Parameter(torch.empty(out, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pretrained = self.linear(x)
        if not self.rank:
            return pretrained
        dropped = F.dropout(x, DROPOUT, True)
        return pretrained + (dropped @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)) * 2.0


class LoRAQKV(nn.Module):
    """Queries, keys and values from one layer; the adapters of some of them are padded with zeros to its width."""

    def __init__(self, s: Shape, rank: int, on: tuple[bool, bool, bool]) -> None:
        super().__init__()
        sizes = (s.heads * s.head, s.groups * s.head, s.groups * s.head)
        self.linear, self.on = nn.Linear(s.width, sum(sizes), bias=s.bias), on
        self.sizes, self.out, self.grouped = (
            [n for n, each in zip(sizes, on, strict=True) if each],
            sum(sizes),
            s.groups != s.heads,
        )
        self.lora_A = nn.Parameter(torch.empty(rank * sum(on), s.width))
        self.lora_B = nn.Parameter(torch.empty(sum(self.sizes), rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pretrained = self.linear(x)
        small = F.linear(F.dropout(x, DROPOUT, True), self.lora_A).transpose(-2, -1)
        weight = self.lora_B.unsqueeze(-1)
        if self.grouped:
            parts = zip(small.chunk(sum(self.on), dim=1), weight.split(self.sizes), strict=True)
            wide = torch.cat([F.conv1d(a, b) for a, b in parts], dim=1)
        else:
            wide = F.conv1d(small, weight, groups=sum(self.on))
        return pretrained + self.padded(wide.transpose(-2, -1)) * 2.0

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        if all(self.on):
            return x
        x = x.transpose(0, 1)
        zeros = x.new_zeros((*x.shape[:-1], self.out)).view(-1, self.out)
        index = torch.zeros(sum(self.sizes), dtype=torch.long)
        made = zeros.index_copy(1, index, x.reshape(-1, sum(self.sizes)))
        return made.view(*x.shape[:-1], self.out).transpose(0, 1)

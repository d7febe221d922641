"""Rows of torchao's optimizer benchmark: timm's ViT-Huge under bf16 autocast; torch.compile is not imitated.

Source: benchmarks/benchmark_low_bit_adam.py and torchao/optim/README.md of pytorch/ao, and timm's VisionTransformer.
"""

from __future__ import annotations

from typing import Any

import direct
import torch
from rows import Row
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hf_efficient.memory.reading import Run
from hf_efficient.memory.step import Step

WIDTH, LAYERS, HEADS, PATCH, IMAGE, CLASSES = 1280, 32, 16, 14, 224, 45
"""By the row's notes; 45 classes of resisc45."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.empty(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return {"loss": F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)}


def traced(row: Row) -> Any:
    """Return the peak of a row; both 4-bit optimizers keep two states of half a byte and a scale for each block."""
    with torch.device("meta"):
        model = ViT().train()
    name = "adamw_torch_4bit" if "4-bit" in row.optimizer else "adamw_torch_fused"
    run = Run(optimizer={"name": name}, max_grad_norm=0.0, autocast="bfloat16")

    def batch(_: nn.Module) -> dict[str, Any]:
        return {"image": torch.empty(row.batch, 3, IMAGE, IMAGE), "labels": torch.zeros(row.batch, dtype=torch.long)}

    return direct.peak(row, model, run, step=Step(autocast=torch.bfloat16), inputs=batch)

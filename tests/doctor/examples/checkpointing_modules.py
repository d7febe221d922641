"""Scripts in which the checks of checkpointing_modules find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

MODULE = """
import torch
from torch import nn
import torch.utils.checkpoint as cp
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3)
        self.body = nn.ModuleList([nn.Conv2d(64, 64, 3, padding=1) for _ in range(8)])
        self.head = nn.Linear(64, 10)
        {freeze}
    def forward(self, pixels, y):
        {features}
        for layer in self.body:
            x = cp.checkpoint(layer, x{more})
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), y)
"""
FREEZE = "for p in self.stem.parameters(): p.requires_grad = False"
FEATURES = "x = self.stem(pixels).relu()"


def _module(more: str, freeze: str = FREEZE, features: str = FEATURES) -> dict[str, Any]:
    return {"files": {"net.py": MODULE.format(more=more, freeze=freeze, features=features)}}


EXAMPLES = {
    "reentrant-checkpoint-of-frozen-layer-output": (
        [
            _module(", use_reentrant=True"),
            _module(""),
            _module(
                ", use_reentrant=True", "self.stem.requires_grad_(False)", "x = self.stem(pixels) + self.stem(pixels)"
            ),
            _module(", use_reentrant=True", "pass", "with torch.no_grad(): x = self.stem(pixels)"),
        ],
        [
            _module(", use_reentrant=False"),
            _module(", use_reentrant=True", "pass"),
            _module(", use_reentrant=True", FREEZE, "x = self.stem(pixels)\n        x.requires_grad_()"),
            _module(", use_reentrant=True", "self.body.requires_grad_(False); self.stem.requires_grad_(False)"),
            _module(", use_reentrant=flag"),
        ],
    ),
    "checkpoint-without-use-reentrant": (
        [
            _module("", "pass"),
            {"script": "from torch.utils.checkpoint import checkpoint_sequential as s\ny = s(layers, 4, x)\n"},
        ],
        [_module(", use_reentrant=False"), _module(", **keywords"), {"script": "checkpoint(model, 'last.pt')\n"}],
    ),
    "reentrant-checkpoint-with-keywords": (
        [
            _module(", attention_mask=mask, use_reentrant=True", "pass"),
            {"script": "from torch.utils.checkpoint import checkpoint as c\ny = c(f, x, mask=m)\n"},
        ],
        [
            _module(", attention_mask=mask, use_reentrant=False", "pass"),
            _module(", preserve_rng_state=False, use_reentrant=True", "pass"),
        ],
    ),
}

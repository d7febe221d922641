"""Scripts in which the check of checkpointing_files finds its mistake, and relatives in which it stays silent."""

from __future__ import annotations

from typing import Any

LOOP = """
import torch
from safetensors.torch import load_file
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.Adam(model.parameters())
device = torch.device("cuda:1")
{read}
model.load_state_dict(state{part})
{after}
for x in torch.load("x.pt"):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HELPER = """
def resume(path):
    held = torch.load(path, map_location=device)
    model.load_state_dict(held["model"])
    return held
"""


def _loop(read: str, after: str = "", part: str = "") -> dict[str, Any]:
    return {"files": {"train.py": LOOP.format(read=read, after=after, part=part)}}


EXAMPLES = {
    "checkpoint-stays-on-gpu": (
        [
            _loop('state = torch.load("last.ckpt", map_location=device)', part='["state_dict"]'),
            _loop('state = load_file("model.safetensors", device="cuda:0")'),
            _loop('state = torch.load("last.ckpt")'),
            _loop(HELPER + 'kept = resume("last.ckpt")', part=" or None"),
        ],
        [
            _loop('state = torch.load("last.ckpt", map_location=torch.device("cpu"))'),
            _loop('state = torch.load("last.ckpt", map_location="cuda")', after="del state"),
            _loop('state = load_file("model.safetensors")'),
            _loop(HELPER + 'resume("last.ckpt")', part=" or None"),
            _loop(HELPER + 'kept = resume("last.ckpt")', after="del kept", part=" or None"),
        ],
    ),
}

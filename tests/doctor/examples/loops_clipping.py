"""Setups in which the checks of loops_clipping find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

START = """import torch
import deepspeed
from torch import nn
from accelerate import Accelerator
from torch.nn.utils import clip_grad_norm_
acc = Accelerator({accelerator})
net = nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(rows, batch_size=4)
sched = torch.optim.lr_scheduler.StepLR(opt, 10)
{prepare}
for batch in data:
"""
READY = "net, opt, data = acc.prepare(net, opt, data)"
ZERO = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: {}\nnum_processes: 2\n"


def loop(body: str, accelerator: str = "", prepare: str = READY, **others: str) -> dict[str, Any]:
    """Return a script with a loop over its data."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return {"files": {"loop.py": START.format(accelerator=accelerator, prepare=prepare) + lines + "\n", **others}}


def inside(body: str, accelerator: str) -> dict[str, Any]:
    """Return a loop whose body stands in accumulate()."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return loop(f"with acc.accumulate(net):\n{lines}", accelerator)


ALL = "acc.backward(net(batch).mean())\nacc.clip_grad_norm_(net.parameters(), 1.0)\nopt.step()\nopt.zero_grad()"
VALUE = ALL.replace("clip_grad_norm_", "clip_grad_value_")
GUARDED = ALL.replace("acc.clip", "if acc.sync_gradients:\n    acc.clip")
TORCH = ALL.replace("acc.clip", "nn.utils.clip")
SCALED = (
    "scaler.scale(net(batch).mean()).backward()\n{}clip_grad_norm_(net.parameters(), 0.5)\nscaler.step(opt)\n"
    "scaler.update()\nopt.zero_grad()"
)
SCALER = "scaler = torch.amp.GradScaler()"
ENGINE = "eng, inner, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=cfg())"


def _every(backward: str, clip: str) -> str:
    step = "scaler.step(optimizer)" if "scaler" in backward else "optimizer.step()"
    return (
        "import torch\nscaler = torch.amp.GradScaler('cuda')\nfor i, batch in enumerate(loader):\n"
        f"    loss = model(batch).mean()\n    {backward}\n    {clip}\n    if (i + 1) % 4 == 0:\n        {step}\n"
        "        optimizer.zero_grad()\n"
    )


EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "clipping-before-sync": (
        [
            inside(ALL, 'gradient_accumulation_steps=4, mixed_precision="fp16"'),
            inside(VALUE, "gradient_accumulation_steps=16"),
        ],
        [
            inside(GUARDED, 'gradient_accumulation_steps=4, mixed_precision="fp16"'),
            inside(ALL, "gradient_accumulation_steps=many()"),
            inside(ALL, ""),
        ],
    ),
    "clipping-every-micro-batch": (
        [
            {"script": _every("scaler.scale(loss / 4).backward()", "scaler.unscale_(optimizer)")},
            {"script": _every("(loss / 4).backward()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)")},
        ],
        [
            {"script": _every("(loss / 4).backward()", "pass")},
            {
                "script": _every(
                    "(loss / 4).backward()", "if i % 4 == 3: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"
                )
            },
        ],
    ),
    "clipping-scaled-gradients": (
        [loop(SCALED.format(""), prepare=SCALER), loop(TORCH, 'mixed_precision="fp16"')],
        [
            loop(SCALED.format("scaler.unscale_(opt)\n"), prepare=SCALER),
            loop(TORCH, 'mixed_precision="bf16"'),
            loop(ALL, 'mixed_precision="fp16"'),
        ],
    ),
    "clipping-out-of-order": (
        [
            loop(
                "acc.backward(net(batch).mean())\nopt.step()\nacc.clip_grad_norm_(net.parameters(), 1)\nopt.zero_grad()"
            ),
            loop(
                "clip_grad_norm_(net.parameters(), 1)\nloss = net(batch).mean()\nloss.backward()\n"
                "opt.step()\nopt.zero_grad()",
                prepare="",
            ),
        ],
        [loop(ALL)],
    ),
    "clipping-left-to-deepspeed": (
        [
            loop(ALL, **{"acc.yaml": ZERO.format("0.3")}),
            loop(TORCH.replace("1.0", "max_norm=5.0"), **{"acc.yaml": ZERO.format("1.0")}),
        ],
        [loop(ALL, **{"acc.yaml": ZERO.format("1.0")}), loop(ALL)],
    ),
    "backward-past-accelerator": (
        [
            loop("loss = net(batch).mean()\nloss.backward()\nopt.step()\nopt.zero_grad()", 'mixed_precision="fp16"'),
            inside(
                "loss = net(batch).mean()\nloss.backward()\nopt.step()\nopt.zero_grad()",
                "gradient_accumulation_steps=2",
            ),
            inside(
                "loss = net(batch).mean() / 4\nloss.backward()\nopt.step()\nopt.zero_grad()",
                'mixed_precision="fp16", gradient_accumulation_steps=4',
            ),
        ],
        [
            loop("loss = net(batch).mean()\nloss.backward()\nopt.step()\nopt.zero_grad()", 'mixed_precision="bf16"'),
            inside(
                "loss = net(batch).mean() / 4\nloss.backward()\nopt.step()\nopt.zero_grad()",
                "gradient_accumulation_steps=4",
            ),
            loop(ALL, 'mixed_precision="fp16"'),
        ],
    ),
    "engine-stepped-by-hand": (
        [
            loop("eng.backward(eng(batch).mean())\ninner.step()\ninner.zero_grad()", prepare=ENGINE),
            loop("eng.backward(eng(batch).mean())\neng.step()\ninner.step()", prepare=ENGINE),
        ],
        [loop("eng.backward(eng(batch).mean())\neng.step()", prepare=ENGINE)],
    ),
    "scheduler-before-optimizer": (
        [
            loop("acc.backward(net(batch).mean())\nsched.step()\nopt.step()\nopt.zero_grad()"),
            loop("opt.zero_grad()\nsched.step()\nloss = net(batch).mean()\nloss.backward()\nopt.step()", prepare=""),
        ],
        [loop("acc.backward(net(batch).mean())\nopt.step()\nsched.step()\nopt.zero_grad()")],
    ),
}

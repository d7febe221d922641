"""Setups in which the checks of loops find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

START = """import torch
import deepspeed
from accelerate import Accelerator
from torch.optim import AdamW
steps = 8
acc = Accelerator({accelerator})
net = torch.nn.Linear(4, 4)
opt = AdamW(net.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(rows, batch_size=4)
{prepare}
"""
READY = "net, opt, data = acc.prepare(net, opt, data)"


def loop(body: str, accelerator: str = "", prepare: str = READY, **others: str) -> dict[str, Any]:
    """Return a script with a loop over its data."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = START.format(accelerator=accelerator, prepare=prepare) + f"for i, batch in enumerate(data):\n{lines}\n"
    return {"files": {"loop.py": text, **others}}


def inside(body: str, accelerator: str = "gradient_accumulation_steps=8") -> dict[str, Any]:
    """Return a loop whose body stands in accumulate()."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return loop(f"with acc.accumulate(net):\n{lines}", accelerator)


STEP = "\nopt.step()\nopt.zero_grad()"
EVERY = "\nif (i + 1) % steps == 0:\n    opt.step()\n    opt.zero_grad()"
JSON = '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}}'
ENGINE = 'mod, opt, _, _ = deepspeed.initialize(model=net, optimizer=opt, config="ds.json")'
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "backward-divides-already": (
        [
            inside("loss = crit(net(batch)) / 8\nacc.backward(loss)" + STEP),
            inside("loss = crit(net(batch))\nloss /= steps\nacc.backward(loss)" + STEP),
            inside("acc.backward(crit(net(batch)) * (1 / acc.gradient_accumulation_steps))" + STEP),
            inside("part = crit(net(batch)).div(steps)\nloss = part\nacc.backward(loss)" + STEP),
            loop("loss = mod(batch).mean() / 2\nmod.backward(loss)\nmod.step()", "", ENGINE, **{"ds.json": JSON}),
        ],
        [
            inside("loss = crit(net(batch))\ntotal += loss.detach() / 8\nacc.backward(loss)" + STEP),
            loop("loss = crit(net(batch)) / steps\nacc.backward(loss)" + EVERY),
            loop("loss = crit(net(batch)) / n\nacc.backward(loss)" + STEP, "gradient_accumulation_steps=k()"),
            inside("loss = crit(net(batch)).sum() / batch.numel()\nacc.backward(loss)" + STEP),
            loop(
                "loss = mod(batch).mean() / 2\nmod.backward(loss, scale_wrt_gas=False)\nmod.step()",
                "",
                ENGINE,
                **{"ds.json": JSON},
            ),
        ],
    ),
    "accumulate-block-missing": (
        [
            loop("acc.backward(crit(net(batch)))" + STEP, "gradient_accumulation_steps=steps"),
            loop("opt.zero_grad()\nacc.backward(net(batch).mean())\nopt.step()", "gradient_accumulation_steps=2"),
        ],
        [
            loop("acc.backward(crit(net(batch)))" + STEP),
            loop("acc.backward(crit(net(batch)))" + EVERY, "gradient_accumulation_steps=steps"),
            inside("acc.backward(crit(net(batch)))" + STEP),
            loop("acc.backward(crit(net(batch)))" + STEP, "gradient_accumulation_steps=k()"),
        ],
    ),
    "accumulated-loss-not-divided-in-loop": (
        [
            loop("loss = crit(net(batch))\nloss.backward()" + EVERY, prepare=""),
            loop("acc.backward(crit(net(batch)))" + EVERY),
            loop(
                "scaler.scale(net(batch).loss).backward()\nif i % 4 == 3:\n    scaler.step(opt)\n    opt.zero_grad()",
                prepare="scaler = torch.amp.GradScaler()",
            ),
        ],
        [
            loop("loss = crit(net(batch)) / steps\nloss.backward()" + EVERY, prepare=""),
            loop("loss = crit(net(batch))\nloss.backward()" + STEP, prepare=""),
            loop('loss = cross(net(batch), batch, reduction="sum")\nloss.backward()' + EVERY, prepare=""),
            inside("acc.backward(crit(net(batch)))" + EVERY),
        ],
    ),
    "gradients-cleared-between": (
        [
            loop("loss = crit(net(batch))\nloss.backward()\nopt.zero_grad()\nopt.step()", prepare=""),
            loop(
                "opt.zero_grad()\nloss = crit(net(batch)) / 4\nloss.backward()\nif (i + 1) % 4 == 0:\n    opt.step()",
                prepare="",
            ),
            inside("acc.backward(crit(net(batch)))\nopt.step()\nnet.zero_grad()"),
        ],
        [
            loop("opt.zero_grad()\nloss = crit(net(batch))\nloss.backward()\nopt.step()", prepare=""),
            inside("opt.zero_grad()\nacc.backward(crit(net(batch)))\nopt.step()"),
            loop("loss = crit(net(batch)) / steps\nloss.backward()" + EVERY, prepare=""),
        ],
    ),
    "gradients-never-cleared": (
        [
            loop("loss = crit(net(batch))\nloss.backward()\nopt.step()", prepare=""),
            loop("acc.backward(crit(net(batch)))\nopt.step()"),
        ],
        [
            loop(
                "loss = crit(net(batch))\nloss.backward()\nopt.step()\nfor p in net.parameters():\n    p.grad = None",
                prepare="",
            ),
            loop("mod.backward(mod(batch).mean())\nmod.step()", "", ENGINE, **{"ds.json": JSON}),
        ],
    ),
}

"""Setups in which the checks of schedulers find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

SCRIPT = """import math, torch
from accelerate import Accelerator
from transformers import get_scheduler
from torch.optim.lr_scheduler import OneCycleLR
acc = Accelerator(gradient_accumulation_steps={steps}{more})
net = torch.nn.Linear(4, 4)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(rows, batch_size=4)
{before}
net, opt, data = acc.prepare(net, opt, data)
{after}
for epoch in range(2):
    for batch in data:
        with acc.accumulate(net):
            acc.backward(net(batch).mean())
            opt.step()
            {tick}
            opt.zero_grad()
"""
RUN = "accelerate launch --multi_gpu --num_processes {} tune.py\n"


def tuned(before: str = "", after: str = "", steps: int = 1, processes: int = 4, **more: str) -> dict[str, Any]:
    """Return a script and the command that starts it."""
    tick = more.get("tick", "plan.step()")
    text = SCRIPT.format(before=before, after=after, steps=steps, more=more.get("more", ""), tick=tick)
    return {"files": {"tune.py": text, "run.sh": RUN.format(processes)}}


PLAN = 'plan = get_scheduler("cosine", optimizer=opt, num_warmup_steps=10, num_training_steps={})\n'
HAND = "plan = acc.prepare(plan)"
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "scheduler-ticks-per-process": (
        [
            tuned(after=PLAN.format("2 * len(data)") + HAND),
            tuned(after="total = len(data) * 2\nplan = OneCycleLR(opt, max_lr=1e-3, total_steps=total)\n" + HAND),
            tuned(after="per = math.ceil(len(data) / 8)\n" + PLAN.format("per * 2") + HAND, steps=8, processes=8),
        ],
        [
            tuned(before=PLAN.format("2 * len(data)"), after=HAND),
            tuned(after=PLAN.format("2 * len(data) * acc.num_processes") + HAND),
            tuned(after=PLAN.format("2 * len(data)") + HAND, processes=1),
            tuned(after=PLAN.format("2 * len(data)") + HAND, more=", split_batches=True"),
            tuned(after=PLAN.format("2 * len(data)")),
            tuned(after=PLAN.format("5000") + HAND),
        ],
    ),
    "scheduler-steps-every-micro-batch": (
        [
            tuned(after=PLAN.format("2 * len(data) // 4"), steps=4),
            tuned(after=PLAN.format("math.ceil(len(data) / 2)"), steps=2, processes=1),
        ],
        [
            tuned(
                after=PLAN.format("2 * len(data) // 4"),
                steps=4,
                tick="if acc.sync_gradients:\n                plan.step()",
            ),
            tuned(after=PLAN.format("2 * len(data)"), steps=4),
            tuned(after=PLAN.format("2 * len(data) // 4") + HAND, steps=4),
        ],
    ),
    "scheduler-prepared-on-processes": (
        [
            {"scheduler": {"class": "x", "num_training_steps": n, "prepared": True}, "processes": n // 10}
            for n in (40, 80)
        ],
        [{"scheduler": {"class": "x", "num_training_steps": 40}, "processes": 4}],
    ),
    "schedule-lacks-its-keyword": (
        [
            {"trainer": {"lr_scheduler_type": "cosine_warmup_with_min_lr"}},
            {"trainer": {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"min_lr_ratio": 0.1}}},
            {
                "trainer": {
                    "lr_scheduler_type": "cosine_with_min_lr",
                    "lr_scheduler_kwargs": {"min_lr": 1e-6, "min_lr_rate": 0.1},
                }
            },
        ],
        [
            {"trainer": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}},
            {"trainer": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": "{}"}},
        ],
    ),
    "warmup-longer-than-training": (
        [{"trainer": {"warmup_steps": n, "max_steps": 100}} for n in (100, 2000)],
        [{"trainer": {"warmup_steps": 0.1, "max_steps": 100}}, {"trainer": {"warmup_steps": 2000}}],
    ),
    "constant-schedule-without-warmup": (
        [{"trainer": {"warmup_steps": n, "lr_scheduler_type": "constant"}} for n in (0.03, 200)],
        [{"trainer": {"warmup_steps": 5, "lr_scheduler_type": "constant_with_warmup"}}],
    ),
}

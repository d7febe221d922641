"""Setups in which the checks of deepspeed_auto find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

LOOP = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)
"""
PLAIN = """
import deepspeed
engine, _, _, _ = deepspeed.initialize(model=model, config="ds.json")
"""
DUMMY = """
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler
accelerator = Accelerator()
optimizer = DummyOptim(model.parameters(), lr=1e-4)
scheduler = DummyScheduler(optimizer, total_num_steps=100)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
"""
BLOCK = {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
LOADED = LOOP.replace("(model, optimizer)", "(model, optimizer, DataLoader(rows))")


def _json(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"} | keys


EXAMPLES = {
    "deepspeed-auto-without-source": (
        [
            {"trainer": {}, "deepspeed": _json(zero_optimization={"stage": 2, "allgather_bucket_size": "auto"})},
            {"trainer": {}, "deepspeed": _json(steps_per_print="auto")},
            {"accelerator": {}, "deepspeed": _json(optimizer={"type": "AdamW", "params": {"betas": "auto"}})},
        ],
        [
            {
                "trainer": {},
                "deepspeed": _json(optimizer={"type": "AdamW", "params": {"betas": "auto", "eps": "auto"}}),
            },
            {"deepspeed": _json(zero_optimization={"stage": 3, "reduce_bucket_size": "auto"})},
        ],
    ),
    "deepspeed-auto-without-integration": (
        [
            {"script": PLAIN, "deepspeed": _json()},
            {"script": PLAIN, "deepspeed": {"train_batch_size": 8, "bf16": {"enabled": "auto"}}},
        ],
        [
            {"script": PLAIN, "deepspeed": {"train_batch_size": 8, "bf16": {"enabled": True}}},
            {"trainer": {}, "deepspeed": _json(bf16={"enabled": "auto"})},
        ],
    ),
    "deepspeed-auto-batch-without-loader": (
        [
            {"script": LOOP, "accelerator": {}, "deepspeed": _json()},
            {
                "script": LOOP.replace("model, optimizer =", "net, opt =").replace("(model, ", "(net, "),
                "accelerator": {},
                "launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
            },
        ],
        [
            {"script": LOADED, "accelerator": {}, "deepspeed": _json()},
            {"script": LOOP, "accelerator": {}, "deepspeed": _json(train_micro_batch_size_per_gpu=4)},
            {"script": LOOP.replace("(model, optimizer)", "(*things)"), "accelerator": {}, "deepspeed": _json()},
        ],
    ),
    "deepspeed-auto-without-dummy": (
        [
            {"script": LOADED, "accelerator": {}, "deepspeed": _json(**BLOCK)},
            {
                "script": LOADED,
                "accelerator": {},
                "deepspeed": _json(scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}),
            },
        ],
        [
            {"script": DUMMY, "accelerator": {}, "deepspeed": _json(**BLOCK)},
            {"trainer": {}, "script": LOADED, "deepspeed": _json(**BLOCK)},
        ],
    ),
}

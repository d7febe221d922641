"""Setups in which the checks of deepspeed_optimizer find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

LOOP = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
optimizer = torch.optim.{kind}(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""
DUMMY = """
from accelerate import Accelerator
from accelerate.utils import DummyOptim
accelerator = Accelerator()
optimizer = DummyOptim(model.parameters())
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", deepspeed="ds.json")
trainer = Trainer(model=model, args=args, train_dataset=rows, optimizers=({given}, None))
trainer.train()
"""
SCHEDULE = LOOP + "\nscheduler = get_cosine_schedule_with_warmup(optimizer, 10, 100)\n"


def _json(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 2}} | keys


def _block(kind: str) -> dict[str, Any]:
    return _json(optimizer={"type": kind, "params": {"lr": 1e-4}})


def _schedule(kind: str, steps: Any = 10) -> dict[str, Any]:
    return _json(scheduler={"type": kind, "params": {"warmup_num_steps": steps}})


def _yaml(**keys: Any) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": keys}


EXAMPLES = {
    "deepspeed-optimizer-beside-optim": (
        [
            {"trainer": {"optim": "adafactor"}, "deepspeed": _block("AdamW")},
            {"trainer": {"optim": "paged_adamw_8bit"}, "deepspeed": _block("Adam")},
        ],
        [
            {"trainer": {"optim": "adamw_torch"}, "deepspeed": _block("AdamW")},
            {"trainer": {}, "deepspeed": _block("Lion")},
        ],
    ),
    "deepspeed-optimizer-in-code-too": (
        [
            {"script": LOOP.format(kind="SGD"), "accelerator": {}, "deepspeed": _block("AdamW")},
            {"script": SCHEDULE.format(kind="Adam"), "accelerator": {}, "deepspeed": _schedule("WarmupLR")},
        ],
        [
            {"script": LOOP.format(kind="SGD"), "accelerator": {}, "deepspeed": _json()},
            {"script": DUMMY, "accelerator": {}, "deepspeed": _block("AdamW")},
            {"trainer": {}, "script": LOOP.format(kind="SGD"), "deepspeed": _block("AdamW")},
        ],
    ),
    "deepspeed-dummy-without-block": (
        [
            {"script": DUMMY, "accelerator": {}, "deepspeed": _json()},
            {"script": DUMMY + "x = 1\n", "deepspeed": _json(gradient_clipping=1.0)},
        ],
        [{"script": DUMMY, "accelerator": {}, "deepspeed": _block("AdamW")}],
    ),
    "deepspeed-scheduler-beside-type": (
        [
            {"trainer": {"lr_scheduler_type": "cosine"}, "deepspeed": _schedule("WarmupLR")},
            {"trainer": {"lr_scheduler_type": "constant"}, "deepspeed": _schedule("WarmupDecayLR")},
        ],
        [
            {"trainer": {"lr_scheduler_type": "linear"}, "deepspeed": _schedule("WarmupDecayLR")},
            {"trainer": {}, "deepspeed": _schedule("WarmupLR")},
        ],
    ),
    "deepspeed-scheduler-unusable": (
        [{"deepspeed": _schedule("WarmupLR", 0)}, {"deepspeed": _schedule("warmupdecaylr")}],
        [{"deepspeed": _schedule("WarmupLR", "auto")}, {"deepspeed": _schedule("OneCycle", 5)}],
    ),
    "trainer-optimizers-dropped-by-deepspeed": (
        [
            {"trainer": {}, "script": TRAINER.format(given="optimizer"), "deepspeed": _json()},
            {"trainer": {}, "script": TRAINER.format(given="Lion(model.parameters())"), "deepspeed": _json()},
        ],
        [
            {"trainer": {}, "script": TRAINER.format(given="None"), "deepspeed": _json()},
            {"trainer": {}, "script": TRAINER.format(given="optimizer")},
        ],
    ),
    "zero-offload-param-below-stage-3": (
        [
            {"deepspeed": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}},
            {"launch": _yaml(zero_stage=1, offload_param_device="nvme")},
        ],
        [
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
            {"launch": _yaml(zero_stage=2, offload_param_device="none")},
        ],
    ),
    "zero-optimizer-offload-without-zero": (
        [
            {"deepspeed": {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}},
            {"launch": _yaml(zero_stage=0, offload_optimizer_device="cpu")},
        ],
        [{"launch": _yaml(zero_stage=1, offload_optimizer_device="cpu")}],
    ),
    "zero-offload-maps-adam": (
        [
            {
                "accelerator": {},
                "optimizer": {"class": "torch.optim.Adam"},
                "launch": _yaml(zero_stage=2, offload_optimizer_device="cpu"),
            },
            {
                "accelerator": {},
                "optimizer": {"class": "AdamW"},
                "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
            },
        ],
        [
            {
                "accelerator": {},
                "optimizer": {"class": "AdamW"},
                "deepspeed": {
                    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
                    "zero_force_ds_cpu_optimizer": False,
                },
            },
            {"accelerator": {}, "optimizer": {"class": "AdamW"}, "launch": _yaml(zero_stage=2)},
        ],
    ),
}

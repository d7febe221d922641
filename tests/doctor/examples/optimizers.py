"""Setups in which the checks of optimizers find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any


def made(line: str, more: str = "") -> dict[str, Any]:
    """Return a script that makes an optimizer."""
    return {
        "files": {
            "a.py": f"""import torch, transformers
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.optimization import Adafactor, AdafactorSchedule
model = AutoModelForCausalLM.from_pretrained("some/checkpoint")
{line}
args = TrainingArguments(output_dir="o")
{more}
"""
        }
    }


NONE = "o = Adafactor(model.parameters(), relative_step=True, scale_parameter=True)"
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "adafactor-lr-with-relative-step": (
        [
            made("o = Adafactor(model.parameters(), 3e-4)"),
            made(
                "", "t = Trainer(model, args, optimizer_cls_and_kwargs=(Adafactor, dict(lr=1e-4, relative_step=True)))"
            ),
            made("o = transformers.Adafactor(model.parameters(), lr=None, relative_step=False, warmup_init=True)"),
            {"optimizer": {"class": "Adafactor", "lr": 0.01}},
        ],
        [
            made("o = Adafactor(model.parameters(), lr=3e-4, relative_step=False)"),
            made("o = torch.optim.Adafactor(model.parameters(), lr=3e-4)"),
            made("o = Adafactor(model.parameters(), **options())"),
        ],
    ),
    "adafactor-without-its-schedule": (
        [
            made(NONE, "t = Trainer(model, args, optimizers=(o, None))"),
            made(NONE, "pair = (o, transformers.get_constant_schedule(o))\nt = Trainer(model, args, optimizers=pair)"),
            made(
                "o = transformers.Adafactor(model.parameters())",
                "t = Trainer(model=model, args=args, optimizers=(o, None))",
            ),
        ],
        [
            made(NONE, "t = Trainer(model, args, optimizers=(o, AdafactorSchedule(o)))"),
            made(
                "o = Adafactor(model.parameters(), lr=1e-3, relative_step=False)",
                "t = Trainer(model, args, optimizers=(o, None))",
            ),
        ],
    ),
    "optimizer-unknown": (
        [{"trainer": {"optim": "adamw_fusion"}}, {"sft": {"optim": "paged_adamw_4bit"}}],
        [
            {"trainer": {"optim": "adamw_apex_fused"}},
            {"trainer": {"optim": "rmsprop_bnb_8bit"}},
            {"trainer": {"optim": "OptimizerNames.ADAFACTOR"}},
        ],
    ),
    "optimizer-package-missing": (
        [
            {"trainer": {"optim": "grokadamw"}, "machine": {"packages": {"grokadamw": None}}},
            {"trainer": {"optim": "paged_adamw_8bit"}, "machine": {"packages": {"bitsandbytes": ""}}},
        ],
        [{"trainer": {"optim": "paged_adamw_8bit"}, "machine": {"packages": {"torch": "2.13.0"}}}],
    ),
    "optim-args-unreadable": (
        [
            {"trainer": {"optim": "ademamix", "optim_args": {"alpha": 5.0}}},
            {"trainer": {"optim": "galore_adamw", "optim_args": "rank: 64", "optim_target_modules": "all-linear"}},
        ],
        [{"trainer": {"optim": "ademamix", "optim_args": "alpha=5.0,beta3=0.999"}}],
    ),
    "optim-args-ignored": (
        [
            {"trainer": {"optim": "adafactor", "optim_args": "relative_step=True"}},
            {"trainer": {"optim": "adamw_torch", "optim_args": "amsgrad=True"}},
            {"sft": {"optim": "paged_adamw_8bit", "optim_args": "percentile_clipping=95"}},
        ],
        [
            {"trainer": {"optim": "sgd", "optim_args": "momentum=0.9"}},
            {"trainer": {"optim": "adafactor"}},
            {"trainer": {"optim": "rmsprop_bnb_8bit", "optim_args": "alpha=0.9"}},
        ],
    ),
    "layerwise-optimizer-limits": (
        [
            {"trainer": {"optim": "galore_adamw"}},
            {
                "trainer": {
                    "optim": "apollo_adamw_layerwise",
                    "optim_target_modules": "all-linear",
                    "gradient_accumulation_steps": 2,
                }
            },
        ],
        [
            {
                "trainer": {
                    "optim": "apollo_adamw",
                    "optim_target_modules": "all-linear",
                    "gradient_accumulation_steps": 2,
                }
            }
        ],
    ),
    "schedule-free-with-a-schedule": (
        [
            {"trainer": {"optim": "schedule_free_adamw"}},
            {"trainer": {"optim": "schedule_free_sgd", "lr_scheduler_type": "cosine"}},
        ],
        [{"trainer": {"optim": "schedule_free_radam", "lr_scheduler_type": "constant"}}],
    ),
}

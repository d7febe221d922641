"""Plan -> the fields of TrainingArguments or SFTConfig, as plain values and as JSON; nothing is built."""

from __future__ import annotations

import json
from typing import Any, Literal

from hf_efficient.plan import Plan

ArgsClass = Literal["trainer", "sft"]

SFT_SILENCE = {"bf16": False, "activation_checkpointing": False}
"""What SFTConfig turns on by itself and a plan's silence leaves off; a test compares it with the installed TRL."""


def training_arguments_json(plan: Plan, args_class: ArgsClass = "trainer") -> str:
    """Return the plan's fields of TrainingArguments (or SFTConfig) as JSON that HfArgumentParser reads."""
    return json.dumps(argument_fields(plan, args_class), indent=2) + "\n"


def argument_fields(plan: Plan, args_class: ArgsClass = "trainer") -> dict[str, Any]:
    """Return the plan's fields of TrainingArguments or SFTConfig, an engine's configuration included."""
    settings = plan["trainer"]
    if args_class == "sft":
        settings = SFT_SILENCE | settings | plan["sft"]
    if plan.engine == "DEEPSPEED":
        settings["deepspeed"] = plan["deepspeed"]
    return settings

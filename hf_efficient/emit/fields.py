"""Plan -> the fields of TrainingArguments or SFTConfig, as plain values and as JSON; nothing is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.emit.engine_rules import STOCK, fit_engine
from hf_efficient.emit.fsdp import own_checkpointing
from hf_efficient.emit.loader import drop_what_needs_workers
from hf_efficient.plan import Plan

ArgsClass = Literal["trainer", "sft"]

SFT_SILENCE = {"bf16": False, "activation_checkpointing": False}
"""What SFTConfig turns on by itself and a plan's silence leaves off; a test compares it with the installed TRL."""


def training_arguments_json(plan: Plan, args_class: ArgsClass = "trainer") -> str:
    """Return the plan's fields of TrainingArguments (or SFTConfig) as JSON that HfArgumentParser reads."""
    return json.dumps(argument_fields(plan, args_class), indent=2) + "\n"


def argument_fields(plan: Plan, args_class: ArgsClass = "trainer") -> dict[str, Any]:
    """Return the plan's fields of TrainingArguments or SFTConfig, an engine's configuration included."""
    settings = complete(plan)["trainer"]
    return SFT_SILENCE | settings | sft_complete(plan)["sft"] if args_class == "sft" else settings


def sft_complete(plan: Plan) -> Plan:
    """Return `plan` with what SFTConfig must be told besides: how SFTTrainer loads a model that is named.

    What a trick has to say about SFTConfig becomes a note. A field that you pass is yours there too.
    """
    yours = [setting.key for setting in plan.settings_of("trainer") if setting.by == "you"]
    plan = plan.drop("sft", yours)
    own = plan["sft"].get("model_init_kwargs", {})
    if plan["model"] and isinstance(own, Mapping):  # yours win key by key; None of yours is none at all
        by = plan.author("sft", "model_init_kwargs") or plan.settings_of("model")[0].by
        plan = plan.override("sft", {"model_init_kwargs": plan["model"] | dict(own)}, by=by)
    return plan.note(*sft_remarks(plan))


def sft_remarks(plan: Plan) -> tuple[str, ...]:
    """Return what the plan's tricks have to say about SFTConfig."""
    return tuple(trick.remarks["sft"] for trick in plan.tricks if "sft" in trick.remarks)


def complete(plan: Plan) -> Plan:
    """Return `plan` with what TrainingArguments must be told besides: the engine's configuration and some silences."""
    plan = own_checkpointing(drop_what_needs_workers(plan, "trainer"), "trainer")
    plan = fit_engine(plan, str(plan["trainer"].get("optim", STOCK)), door="trainer")
    if plan.engine == "DEEPSPEED":
        plan = plan.assume("trainer", {"deepspeed": plan["deepspeed"]}, by=plan.author("launch", "distributed_type"))
    if plan["trainer"].get("torch_compile"):
        # transformers turns tf32 on with torch_compile where nobody mentions it; a plan without tf32 means without.
        plan = plan.assume("trainer", {"tf32": False}, by="the plan's silence")
    return plan

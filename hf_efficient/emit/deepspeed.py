"""Plan -> the JSON that DeepSpeed, TrainingArguments and DeepSpeedPlugin read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_efficient.plan import Conflict, Plan


def deepspeed_json(plan: Plan) -> str:
    """Return the DeepSpeed configuration of a plan whose engine is DeepSpeed, as JSON.

    It names neither optimizer nor scheduler: either block would override `optim` in silence, and break a
    hand-written loop. It is read by TrainingArguments (`deepspeed=`) and DeepSpeedPlugin (`hf_ds_config=`).
    """
    return json.dumps(plan["deepspeed"], indent=2) + "\n"


def offload_devices(zero: Mapping[str, Any]) -> dict[str, str]:
    """Return where the block `zero_optimization` keeps optimizer state and weights: `none` is on the card."""
    return {key: str((zero.get(key) or {}).get("device") or "none") for key in ("offload_optimizer", "offload_param")}


def loop_config(plan: Plan) -> dict[str, Any]:
    """Return the configuration for a hand-written loop, with its own accumulation and clipping written in."""
    return plan["deepspeed"] | loop_settings(plan)


def loop_settings(plan: Plan) -> dict[str, Any]:
    """Return what the engine of a hand-written loop must be told.

    accelerate fills "auto" clipping with 1.0, whatever the loop does; 0.0 is DeepSpeed's "no clipping".
    """
    return {
        "gradient_accumulation_steps": plan["accelerator"].get("gradient_accumulation_steps", 1),
        "gradient_clipping": plan["loop"].get("max_grad_norm", 0.0),
    }


def tell_plugin(plugin: Any, plan: Plan) -> None:
    """Write the plan's clipping and accumulation into a DeepSpeedPlugin of yours; another one is left as it is."""
    if hasattr(plugin, "deepspeed_config"):
        plugin.deepspeed_config.update(loop_settings(plan))
        for name, value in loop_settings(plan).items():
            setattr(plugin, name, value)


def refuse_hidden_steps(plan: Plan, yours: Mapping[str, Any]) -> None:
    """Raise Conflict for accumulation that you give as a plugin, of which DeepSpeed's engine is not told."""
    if plan.engine == "DEEPSPEED" and yours.get("gradient_accumulation_plugin") is not None:
        raise Conflict(
            "gradient_accumulation_plugin hides its steps from DeepSpeed's engine, which would then update after every "
            "micro-batch: write gradient_accumulation(N) in the plan instead."
        )

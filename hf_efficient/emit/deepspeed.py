"""Plan -> the JSON that DeepSpeed, TrainingArguments and DeepSpeedPlugin read."""

from __future__ import annotations

import json
from typing import Any

from hf_efficient.plan import Plan


def deepspeed_json(plan: Plan) -> str:
    """Return the DeepSpeed configuration of a plan whose engine is DeepSpeed, as JSON.

    It names neither optimizer nor scheduler: either block would override `optim` in silence, and break a
    hand-written loop. It is read by TrainingArguments (`deepspeed=`) and DeepSpeedPlugin (`hf_ds_config=`).
    """
    return json.dumps(plan["deepspeed"], indent=2) + "\n"


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

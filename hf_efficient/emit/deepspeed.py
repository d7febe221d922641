"""Plan -> the JSON that DeepSpeed, TrainingArguments and DeepSpeedPlugin read."""

from __future__ import annotations

import json

from hf_efficient.plan import Plan


def deepspeed_json(plan: Plan) -> str:
    """Return the DeepSpeed configuration of a plan whose engine is DeepSpeed, as JSON.

    It names neither optimizer nor scheduler: either block would override `optim` in silence, and break a
    hand-written loop. It is read by TrainingArguments (`deepspeed=`) and DeepSpeedPlugin (`hf_ds_config=`).
    """
    return json.dumps(plan["deepspeed"], indent=2) + "\n"

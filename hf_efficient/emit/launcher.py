"""What `accelerate launch` has said to this process, taken over with its name or held against the plan."""

from __future__ import annotations

import os
from typing import Literal

from hf_efficient.plan import Conflict, Plan

LAUNCH = {"DEEPSPEED": ("DeepSpeed", "--use_deepspeed"), "FSDP": ("FSDP", "--use_fsdp --fsdp_version 2")}
"""Engine -> its name and the flags of `accelerate launch` that choose it."""
SHARDING = {
    "DEEPSPEED": {
        "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
        "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    },
    "FSDP": {
        "fsdp_version": "FSDP_VERSION",
        "fsdp_reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
        "fsdp_offload_params": "FSDP_OFFLOAD_PARAMS",
    },
}
"""Engine -> keys of the launch YAML about what is sharded, and the variables in which the launcher hands them on."""


def launched_processes() -> int:
    """Return how many processes the launcher started for this run (`WORLD_SIZE`), 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def cpu_asked_by_launcher() -> bool:
    """Say whether `accelerate launch --cpu` started this process."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes", "y", "on", "t"}


def cpu_author() -> Literal["launcher", "machine"]:
    """Say who decided that a run without an accelerator has none."""
    return "launcher" if cpu_asked_by_launcher() else "machine"


def take_launchers_precision(plan: Plan, target: Literal["trainer", "accelerator"]) -> Plan:
    """Return `plan` with the precision that `accelerate launch` asks for, where the plan and you are silent.

    The stack would take it over without a word. Raises Conflict where the plan or you want another: the script
    would win, and the launcher's file would be wrong about the run.
    """
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if asked not in ("bf16", "fp16"):
        return plan
    ours, other = plan[target], "fp16" if asked == "bf16" else "bf16"
    wanted = ours.get("mixed_precision") or (other if ours.get(other) else None)
    if wanted is None and ours.get(asked) is False:
        wanted = "no"
    if wanted not in (None, asked):
        key = "mixed_precision" if target == "accelerator" else asked if wanted == "no" else other
        raise Conflict(f"The launcher asks for {asked}, {plan.author(target, key)} for {wanted}: keep one of the two.")
    setting = {"mixed_precision": asked} if target == "accelerator" else {asked: True}
    return plan.assume(target, setting, by="launcher")


def agree_with_launcher(plan: Plan, target: Literal["trainer", "accelerator"]) -> Plan:
    """Return `plan` with the accumulation that the launcher names, and clear the way for the plan's own engine.

    accelerate lets the launcher's accumulation win, and refuses a DeepSpeed configuration beside ZeRO keys of the
    launch YAML even where both say the same. Raises Conflict where launcher and plan differ, and ValueError for a plan
    that needs a launcher and has none.
    """
    _require_the_plans_engine(plan)
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    if steps.isdigit():
        plan = _take_launchers_steps(plan, target, int(steps))
    if plan.engine == launchers_engine() == "FSDP":
        _require_the_same_sharding(plan)
    if plan.engine == "DEEPSPEED" and os.environ.get("ACCELERATE_CONFIG_DS_FIELDS"):
        _require_the_same_sharding(plan)
        os.environ["ACCELERATE_CONFIG_DS_FIELDS"] = ""
    return plan


def launched() -> bool:
    """Say whether a launcher that knows about several processes started this one."""
    return "LOCAL_RANK" in os.environ


def launchers_engine() -> str:
    """Return the engine that `accelerate launch` chose for this process: `DEEPSPEED`, `FSDP` or `NO`."""
    chosen = (e for e in ("DEEPSPEED", "FSDP") if os.environ.get(f"ACCELERATE_USE_{e}", "").lower() == "true")
    return next(chosen, "NO")


def _require_the_plans_engine(plan: Plan) -> None:
    if plan.engine == "NO":
        return
    if not launched():
        name, start = LAUNCH[plan.engine]
        raise ValueError(
            f"{name} needs a launcher, and this process has none: start it with `accelerate launch {start}`."
        )
    if launchers_engine() not in ("NO", plan.engine):
        author = plan.author("launch", "distributed_type")
        raise Conflict(f"The launcher chose {launchers_engine()}, {author} takes {plan.engine}: keep one of the two.")


def _take_launchers_steps(plan: Plan, target: Literal["trainer", "accelerator"], steps: int) -> Plan:
    given = plan[target].get("gradient_accumulation_steps", steps)
    if given != steps:
        author = plan.author(target, "gradient_accumulation_steps")
        raise Conflict(f"The launcher asks for {steps} accumulation steps, {author} for {given}: keep one of the two.")
    return plan.assume(target, {"gradient_accumulation_steps": steps}, by="launcher")


def _require_the_same_sharding(plan: Plan) -> None:
    ours = {"offload_optimizer_device": "none", "offload_param_device": "none"}
    ours |= plan["launch"].get("deepspeed_config", {}) | plan["launch"].get("fsdp_config", {})
    for key, variable in SHARDING[plan.engine].items():
        mine = str(ours[key]).lower()
        theirs = os.environ.get(variable, mine).lower()
        if theirs != mine:
            author = plan.author("launch", "distributed_type")
            raise Conflict(f"The launch YAML says {key}: {theirs}, {author} says {mine}: keep one of the two.")

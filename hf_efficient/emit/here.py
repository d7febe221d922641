"""The machine and the launcher that this process really has, as torch and the environment see them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

from hf_efficient.machine import Machine, this_machine
from hf_efficient.plan import Conflict, Plan
from hf_efficient.trick import Trick


def training_machine() -> Machine:
    """Return this machine as torch can use it: without its GPU where torch is a CPU build or the launcher says CPU."""
    import torch

    machine = this_machine()
    if cpu_asked_by_launcher() or not torch.accelerator.is_available():
        return without_accelerator(machine)
    device = torch.accelerator.current_accelerator()
    kind = device.type if device else ""
    if torch.version.hip:  # torch calls AMD's GPUs "cuda"; NVML does not know them
        found = torch.cuda.get_device_properties(0)
        return replace(
            machine,
            accelerator="rocm",
            gpu=found.name,
            gpus=torch.cuda.device_count(),
            memory_gib=found.total_memory / 2**30,
        )
    if kind == "cuda" and machine.capability == (0, 0):
        return replace(machine, accelerator=kind, capability=torch.cuda.get_device_capability())
    return replace(machine, accelerator=kind)


def without_accelerator(machine: Machine) -> Machine:
    """Return `machine` as if it had its CPU alone."""
    return replace(machine, gpu="", accelerator="", capability=(0, 0), gpus=0, memory_gib=0.0)


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
    if plan.engine == "DEEPSPEED" and not launched():
        raise ValueError(
            "DeepSpeed needs a launcher, and this process has none: start it with `accelerate launch --use_deepspeed`."
        )
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    if steps.isdigit():
        plan = _take_launchers_steps(plan, target, int(steps))
    if plan.engine == "DEEPSPEED" and os.environ.get("ACCELERATE_CONFIG_DS_FIELDS"):
        _require_the_same_sharding(plan)
        os.environ["ACCELERATE_CONFIG_DS_FIELDS"] = ""
    return plan


def launched() -> bool:
    """Say whether a launcher that knows about several processes started this one."""
    return "LOCAL_RANK" in os.environ


def launchers_engine() -> str:
    """Return the engine that `accelerate launch` chose for this process: `DEEPSPEED` or `NO`."""
    return "DEEPSPEED" if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true" else "NO"


def _take_launchers_steps(plan: Plan, target: Literal["trainer", "accelerator"], steps: int) -> Plan:
    given = plan[target].get("gradient_accumulation_steps", steps)
    if given != steps:
        author = plan.author(target, "gradient_accumulation_steps")
        raise Conflict(f"The launcher asks for {steps} accumulation steps, {author} for {given}: keep one of the two.")
    return plan.assume(target, {"gradient_accumulation_steps": steps}, by="launcher")


def _require_the_same_sharding(plan: Plan) -> None:
    keys = {
        "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
        "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    }
    ours = {"offload_optimizer_device": "none", "offload_param_device": "none"} | plan["launch"]["deepspeed_config"]
    for key, variable in keys.items():
        theirs = os.environ.get(variable, str(ours[key]))
        if theirs != str(ours[key]):
            author = plan.author("launch", "distributed_type")
            raise Conflict(f"The launch YAML says {key}: {theirs}, {author} says {ours[key]}: keep one of the two.")


def require(plan: Plan, machine: Machine, *, besides: tuple[Trick, ...] = ()) -> None:
    """Raise ValueError with every need of `plan`, and of tricks `besides`, that `machine` does not meet."""
    unmet = [*plan.unmet(machine), *Plan(tricks=besides).unmet(machine)]
    if unmet:
        raise ValueError(f"This plan cannot run here: {' '.join(unmet)}")

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
    ours = plan[target]
    wanted = ours.get("mixed_precision") or next((p for p in ("bf16", "fp16") if ours.get(p)), None)
    if wanted not in (None, asked):
        author = plan.author(target, "mixed_precision" if target == "accelerator" else str(wanted))
        raise Conflict(f"The launcher asks for {asked}, {author} for {wanted}: keep one of the two.")
    setting = {"mixed_precision": asked} if target == "accelerator" else {asked: True}
    return plan.assume(target, setting, by="launcher")


def require(plan: Plan, machine: Machine, *, besides: tuple[Trick, ...] = ()) -> None:
    """Raise ValueError with every need of `plan`, and of tricks `besides`, that `machine` does not meet."""
    unmet = [*plan.unmet(machine), *Plan(tricks=besides).unmet(machine)]
    if unmet:
        raise ValueError(f"This plan cannot run here: {' '.join(unmet)}")

"""The machine and the launcher that this process really has, as torch and the environment see them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

from hf_efficient.machine import Machine, this_machine
from hf_efficient.plan import Plan


def training_machine() -> Machine:
    """Return this machine as torch can use it: without its GPU where torch is a CPU build or the launcher says CPU."""
    import torch

    machine = this_machine()
    if cpu_asked_by_launcher() or not torch.accelerator.is_available():
        return without_accelerator(machine)
    device = torch.accelerator.current_accelerator()
    kind = device.type if device else ""
    if kind == "cuda" and not machine.gpu:  # ROCm, which NVML does not know
        found = torch.cuda.get_device_properties(0)
        return replace(
            machine,
            accelerator=kind,
            gpu=found.name,
            gpus=torch.cuda.device_count(),
            capability=(found.major, found.minor),
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


def require(plan: Plan, machine: Machine) -> None:
    """Raise ValueError with every need of `plan` that `machine` does not meet."""
    unmet = plan.unmet(machine)
    if unmet:
        raise ValueError(f"This plan cannot run here: {' '.join(unmet)}")

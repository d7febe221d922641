"""The machine that this process really has, as torch sees it, and what a plan needs of it."""

from __future__ import annotations

from dataclasses import replace

from hf_efficient.emit.launcher import cpu_asked_by_launcher
from hf_efficient.machine import Machine, this_machine
from hf_efficient.plan import Plan
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


def require(plan: Plan, machine: Machine, *, besides: tuple[Trick, ...] = ()) -> None:
    """Raise ValueError with every need of `plan`, and of tricks `besides`, that `machine` does not meet."""
    unmet = [*plan.unmet(machine), *Plan(tricks=besides).unmet(machine)]
    if unmet:
        raise ValueError(f"This plan cannot run here: {' '.join(unmet)}")

"""How many processes start, on which devices, and what that makes of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.ranks import data_parallel, visible_gpus
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

REMEDY = "accelerate launch train.py, or torchrun --nproc_per_node {gpus} train.py, or CUDA_VISIBLE_DEVICES=0"


@check({"transformers": ">=4.30"})
def trainer_under_data_parallel(setup: Setup, trainer: Settings, model: Settings = NOTHING) -> Iterator[Finding]:
    """Find a Trainer in one plain process that sees several GPUs: it trains under nn.DataParallel.

    TrainingArguments counts the visible devices where no launcher started the process, and Trainer wraps the model in
    torch.nn.DataParallel: one thread per GPU, the model copied at every step, the first GPU holding the outputs of all.
    The batch is per_device_train_batch_size x GPUs x accumulation. Silent where the model is spread by device_map, or
    DeepSpeed, FSDP or the CPU is asked for.
    """
    gpus = _alone_with(setup)
    elsewhere = setup.zero is not None or setup.fsdp is not None or trainer.on("use_cpu") or _on_cpu(setup)
    if gpus is UNKNOWN or gpus < 2 or elsewhere or model.said("device_map"):
        return
    size, steps = trainer.number("per_device_train_batch_size"), trainer.number("gradient_accumulation_steps")
    batch = size * steps * gpus
    told = "" if batch is UNKNOWN else f": the effective batch is {size} x {steps} x {gpus} GPUs = {batch}"
    yield warning(
        f"one process sees {gpus} GPUs, so Trainer uses nn.DataParallel{told}",
        why="DataParallel copies the model at every step and gathers all outputs on the first GPU: slow, and uneven in "
        "memory. One process per GPU (DDP) has the same effective batch.",
        fix=f"Start it with {REMEDY.format(gpus=gpus)} for one GPU.",
        at=trainer.place,
    )


def _alone_with(setup: Setup) -> Any:
    """Return how many GPUs one process without a launcher's help sees, or UNKNOWN."""
    launch = setup.launch or NOTHING
    kind = launch.get("distributed_type")
    if setup.launcher == "accelerate" and (kind is False or kind == "NO"):
        ids = launch.get("gpu_ids")
        return visible_gpus(setup) if ids in (None, "all") else UNKNOWN
    return data_parallel(setup)


def _on_cpu(setup: Setup) -> bool:
    launch, env, trainer = setup.launch or NOTHING, setup.env or NOTHING, setup.trainer or NOTHING
    said = str(env.get("ACCELERATE_USE_CPU")).lower()
    return launch.on("use_cpu") or trainer.on("use_cpu") or said in ("true", "1", "yes")


@check({"accelerate": ">=1.0"}, seen="arithmetic")
def more_processes_than_devices(setup: Setup, machine: Settings) -> Iterator[Finding]:
    """Find more processes than the machine has GPUs.

    Each process takes the GPU of its local rank: the ranks beyond the last one fail with "invalid device ordinal", or
    NCCL with "Duplicate GPU detected". CUDA_VISIBLE_DEVICES and gpu_ids cut the GPUs. Silent for several machines, for
    the CPU, and where the count of GPUs is unknown.
    """
    launch = setup.launch or NOTHING
    gpus, asked = _devices(setup), setup.processes
    nodes = launch.get("num_machines", 1)
    single = launch.get("distributed_type") in ("NO", False, "MULTI_CPU") or setup.launcher == "python"
    if asked is None or gpus is UNKNOWN or gpus < 1 or asked <= gpus or single or _on_cpu(setup):
        return
    if nodes is UNKNOWN or nodes != 1 or machine.text("accelerator") not in ("", "cuda"):
        return
    yield error(
        f"{asked} processes on {gpus} visible GPU{'s' if gpus != 1 else ''}",
        why="Each process takes the GPU of its rank: those beyond the last fail (invalid device ordinal, or NCCL's "
        "Duplicate GPU detected).",
        fix=f"Start {gpus} (num_processes of accelerate, --nproc_per_node of torchrun, --num_gpus of deepspeed), "
        "or make more GPUs visible.",
        at=launch.where("num_processes"),
    )


def _devices(setup: Setup) -> Any:
    """Return the GPUs that the launcher's processes may use, or UNKNOWN."""
    ids = (setup.launch or NOTHING).get("gpu_ids")
    gpus = visible_gpus(setup)
    if ids is None or ids == "all" or ids is UNKNOWN:
        return UNKNOWN if ids is UNKNOWN else gpus
    listed = len([part for part in str(ids).split(",") if part.strip()])
    return listed if gpus is UNKNOWN else min(listed, gpus)


@check({"accelerate": ">=1.0"}, seen="arithmetic")
def gpus_left_idle(setup: Setup, machine: Settings) -> Iterator[Finding]:
    """Tell that a launcher starts fewer processes than there are GPUs.

    One process drives one GPU, so the others are idle; that may be what is wanted on a shared machine.
    """
    gpus, asked = _devices(setup), setup.processes
    launched = setup.launcher in ("accelerate", "torchrun", "deepspeed")
    if launched and asked is not None and gpus > asked and not _on_cpu(setup) and _alone_with(setup) == 1:
        yield info(
            f"{asked} process{'es' if asked != 1 else ''} on {gpus} visible GPUs",
            why=f"{gpus - asked} of them stay idle.",
            fix=f"Start {gpus} processes, or make only {asked} visible with CUDA_VISIBLE_DEVICES.",
            at=(setup.launch or machine).where("num_processes"),
        )


@check({"accelerate": ">=1.0"})
def accelerator_in_one_process(setup: Setup, accelerator: Settings) -> Iterator[Finding]:
    """Tell that a hand-written loop started by plain `python` uses one of several GPUs.

    Accelerator makes one process of it; the other cards stay idle, and nothing says so.
    """
    gpus = visible_gpus(setup)
    if setup.trainer is None and setup.launcher == "python" and gpus > 1 and not accelerator.on("cpu"):
        yield info(
            f"Accelerator() in one process that sees {gpus} GPUs",
            why="Without a launcher accelerate uses the first GPU only.",
            fix=f"Start it with accelerate launch --num_processes {gpus} --multi_gpu, or torchrun.",
            at=accelerator.place,
        )


@check({"accelerate": ">=1.0"})
def launched_on_cpu(setup: Setup, launch: Settings, machine: Settings) -> Iterator[Finding]:
    """Find use_cpu in the accelerate YAML of a machine with a GPU.

    Everything is then computed on the CPU, in silence.
    """
    if launch.on("use_cpu") and machine.text("accelerator") == "cuda":
        yield warning(
            f"use_cpu is true, and the machine has {machine.text('gpu') or 'a GPU'}",
            why="accelerate then trains on the CPU and leaves the GPU idle.",
            fix="Write use_cpu: false (and leave out --cpu).",
            at=launch.where("use_cpu"),
        )

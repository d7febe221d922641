"""What a launch needs of this machine besides packages: a card for each process, and a disk to offload to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hf_efficient.emit.launcher import launched_processes
from hf_efficient.plan import Plan

BLOCK = 2**20
"""Bytes that are tried on the disk, DeepSpeed's own unit of writing (aio.block_size)."""


def require_cards() -> None:
    """Raise ValueError where the launcher started more processes on this machine than it has cards.

    The second process of a card would fail in NCCL, or the process without one in CUDA, either without the reason.
    """
    import torch

    # torchrun and accelerate say it in the first, DeepSpeed's own launcher in the second.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
    cards = torch.accelerator.device_count() if torch.accelerator.is_available() else processes
    if processes > cards:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f" (CUDA_VISIBLE_DEVICES={shown})" if shown is not None else ""
        raise ValueError(
            f"The launcher started {processes} processes on this machine, and it shows {cards} "
            f"{'card' if cards == 1 else 'cards'}{hidden}: each process needs one of its own. Start it with "
            f"--num_processes {cards * int(os.environ.get('GROUP_WORLD_SIZE') or 1)}."
        )


def require_zero_3_sees_all(plan: Plan) -> None:
    """Raise ValueError where Trainer would load the model of ZeRO-3 as if each process were alone.

    On CPUs transformers starts torch's communication only, and DeepSpeed's, which shards while the model loads, sees
    one process.
    """
    import torch

    stage = plan["deepspeed"].get("zero_optimization", {}).get("stage")
    if stage != 3 or launched_processes() == 1 or torch.accelerator.is_available():
        return
    import deepspeed.comm

    if not deepspeed.comm.is_initialized():
        raise ValueError(
            "ZeRO-3 on several processes needs a GPU for each, and this machine has none: start the script with plain "
            "data parallelism, ACCELERATE_USE_CPU=true and recipes/launch/ddp.yaml."
        )


def require_offload_folders(plan: Plan) -> None:
    """Raise ValueError for a folder that `plan` offloads to and that is unnamed, missing, read-only or full."""
    zero = plan["deepspeed"].get("zero_optimization", {})
    blocks = (zero.get(key) or {} for key in ("offload_optimizer", "offload_param"))
    for folder in sorted({str(block.get("nvme_path") or "") for block in blocks if block.get("device") == "nvme"}):
        if not folder:
            raise ValueError("Offload to nvme needs a folder on a local disk: name it with nvme_path.")
        require_offload_folder(Path(folder))


def require_offload_folder(folder: Path) -> None:
    """Raise ValueError where a block cannot be written to `folder`; nothing is left in it."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file: offloading needs a folder, so name one.")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hf_efficient.") as file:
            file.write(bytes(BLOCK))
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise ValueError(
            f"There is no folder {folder} to offload to: make it on a local NVMe disk, or name another one."
        ) from None
    except OSError as error:
        raise ValueError(
            f"Cannot offload to {folder}: {(error.strerror or str(error)).lower()}. Free it, or name another one."
        ) from None

"""The checkpoint that a run of Trainer goes on from, and what Trainer's checkpoints do not say themselves."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_efficient.train.checkpoints import (
    newest,
    ranks_here,
    read_run,
    refuse_another_run,
    refuse_damaged,
    write_run,
)
from hf_efficient.train.order import sampler_of
from hf_efficient.train.undisturbed import random_numbers_kept

STATE = "trainer_state.json"
OPTIMIZER = ("optimizer.pt", "optimizer.bin", "optimizer_0", "global_step*")
"""Trainer's own, FSDP's whole and in shards, DeepSpeed's."""


class Resumable(TrainerCallback):  # type: ignore[misc]
    """Add to Trainer's run what an exact resume needs, and to its checkpoints what `checkpoint` compares."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **run: Any) -> None:
        """Start persistent workers of a resumed run: that draws a random number, which the run has drawn before."""
        if state.global_step and getattr(run["train_dataloader"], "persistent_workers", False):
            with random_numbers_kept():
                iter(run["train_dataloader"].base_dataloader)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **run: Any) -> None:
        """Let a grouping by length hang on seed and epoch, not on all random numbers before, as shuffling does."""
        sampler = sampler_of(run["train_dataloader"])
        if isinstance(sampler, LengthGroupedSampler):
            sampler.generator = torch.Generator().manual_seed(args.seed + math.floor(state.epoch + 1e-6))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write `run.json`, after all else and by the process that wrote Trainer's state."""
        if args.should_save:
            facts = {"processes": args.world_size, "effective_batch": effective_batch(args)}
            write_run(Path(args.output_dir) / f"checkpoint-{state.global_step}", facts)


def effective_batch(args: TrainingArguments) -> int:
    """Return the samples per update over all processes."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def checkpoint(args: TrainingArguments) -> str | None:
    """Return the folder that `resume_from_checkpoint` names, the newest of the output folder for `true`, or None.

    Raises ValueError when there is no checkpoint of Trainer's, when it is half-written (Trainer would begin with a new
    optimizer or other random numbers and say nothing), or when it is of another number of processes or samples per
    update, or has no update left. Nothing is loaded or unpickled for that.
    """
    asked = os.path.expanduser(str(args.resume_from_checkpoint or ""))
    if asked.lower() in ("", "false", "none"):
        return None
    folder = Path(newest(args.output_dir) if asked.lower() == "true" else asked)
    if asked.lower() != "true" and not (folder / STATE).is_file():
        raise ValueError(f"{asked} is no checkpoint of Trainer's: it has no {STATE}.")
    run = read_run(folder)
    run.setdefault("processes", _processes(folder, args.world_size))
    refuse_another_run(folder, run, args.world_size, effective_batch(args))
    refuse_damaged(folder, _missing(folder, args.world_size))
    if 0 < args.max_steps <= _state(folder)["global_step"]:
        raise ValueError(
            f"{folder} has made the {args.max_steps} updates of --max_steps, and Trainer would make one more: "
            f"raise --max_steps, or take its weights with --model {folder}."
        )
    return str(folder)


def _state(folder: Path) -> dict[str, Any]:
    """Return Trainer's state, empty where it is missing or cut off."""
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _missing(folder: Path, processes: int) -> Iterator[str]:
    if "global_step" not in _state(folder):
        yield f"whole {STATE}"
    if not any(any(folder.glob(name)) for name in OPTIMIZER):
        yield "optimizer state"
    names = [f"rng_state_{rank}.pth" for rank in ranks_here(processes)] if processes > 1 else ["rng_state.pth"]
    yield from (name for name in names if not (folder / name).is_file())


def _processes(folder: Path, now: int) -> int:
    """Return how many processes wrote a checkpoint, by the files that each of them wrote; `now` where that is open."""
    found = (re.search(r"(?:rng_state_|zero_pp_rank_)(\d+)", path.name) for path in folder.rglob("*.pt*"))
    wrote = 1 + max((int(rank[1]) for rank in found if rank), default=0)
    if wrote == 1 and not (folder / "rng_state.pth").is_file():
        return now
    # Where several machines write to folders of their own, each sees a part of the ranks.
    return now if wrote < now and len(ranks_here(now)) < now else wrote

"""The checkpoint that a run of Trainer goes on from, and what Trainer's checkpoints do not say themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_efficient.emit.launcher import launchers_engine
from hf_efficient.train.checkpoints import asked_folder, ranks_here, read_run, refuse_damaged, write_run
from hf_efficient.train.order import sampler_of
from hf_efficient.train.same_run import engine_facts, refuse_another_run, refuse_finished, settings_facts
from hf_efficient.train.undisturbed import random_numbers_kept

STATE = "trainer_state.json"
OPTIMIZER = {"DEEPSPEED": ("global_step*",), "FSDP": ("optimizer.bin", "optimizer_0"), "none": ("optimizer.pt",)}
"""Engine -> where its optimizer state is in Trainer's checkpoints (FSDP's whole or in shards)."""


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
            write_run(Path(args.output_dir) / f"checkpoint-{state.global_step}", run_facts(args))


def run_facts(args: TrainingArguments) -> dict[str, Any]:
    """Return what of this run must be as it was where it goes on."""
    fsdp = launchers_engine() == "FSDP" or args.fsdp_plugin_args is not None
    facts = {"processes": args.world_size, "effective_batch": effective_batch(args)}
    return facts | engine_facts(args.deepspeed_plugin, fsdp=fsdp) | settings_facts(args)


def effective_batch(args: TrainingArguments) -> int:
    """Return the samples per update over all processes."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def checkpoint(args: TrainingArguments) -> str | None:
    """Return the folder that `resume_from_checkpoint` names, the newest of the output folder for `true`, or None.

    Raises ValueError when there is no checkpoint of Trainer's, when it is half-written (Trainer would begin with a new
    optimizer, schedule or other random numbers and say nothing), when it is of a run with other processes, samples per
    update, engine or settings (same_run.py), or has no update left. Nothing is loaded or unpickled for that.
    """
    folder = asked_folder(args.resume_from_checkpoint, args.output_dir)
    if folder is None:
        return None
    if str(args.resume_from_checkpoint).lower() != "true" and not (folder / STATE).is_file():
        raise ValueError(f"{folder} is no checkpoint of Trainer's: it has no {STATE}.")
    now, run = run_facts(args), read_run(folder)
    run.setdefault("processes", _processes(folder, args.world_size))
    run.setdefault("engine", _engine(folder, now["engine"]))
    refuse_another_run(folder, run, now=now)
    refuse_damaged(folder, _missing(folder, args))
    state = _state(folder)
    refuse_finished(folder, args, updates=state["global_step"], epochs=state.get("epoch") or 0.0)
    return str(folder)


def _state(folder: Path) -> dict[str, Any]:
    """Return Trainer's state, empty where it is missing or cut off."""
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _missing(folder: Path, args: TrainingArguments) -> Iterator[str]:
    processes = args.world_size
    if "global_step" not in _state(folder):
        yield f"whole {STATE}"
    if not _engine(folder, ""):
        yield "optimizer state"
    # A scheduler of DeepSpeed's own is saved with its engine.
    if not (args.deepspeed_plugin and args.deepspeed_plugin.deepspeed_config.get("scheduler")):
        yield from ["scheduler.pt"] * (not (folder / "scheduler.pt").is_file())
    names = [f"rng_state_{rank}.pth" for rank in ranks_here(processes)] if processes > 1 else ["rng_state.pth"]
    yield from (name for name in names if not (folder / name).is_file())


def _engine(folder: Path, otherwise: str) -> str:
    """Return the engine that wrote a checkpoint, by its optimizer state; `otherwise` where it has none."""
    found = (engine for engine, names in OPTIMIZER.items() if any(any(folder.glob(name)) for name in names))
    return next(found, otherwise)


def _processes(folder: Path, now: int) -> int:
    """Return how many processes wrote a checkpoint, by the files that each of them wrote; `now` where that is open."""
    found = (re.search(r"(?:rng_state_|zero_pp_rank_)(\d+)", path.name) for path in folder.rglob("*.pt*"))
    wrote = 1 + max((int(rank[1]) for rank in found if rank), default=0)
    if wrote == 1 and not (folder / "rng_state.pth").is_file():
        return now
    # Where several machines write to folders of their own, each sees a part of the ranks.
    return now if wrote < now and len(ranks_here(now)) < now else wrote

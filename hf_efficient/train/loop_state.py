"""Where a hand-written loop is in its run: counted, shown, saved as checkpoints, and taken up again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.train.checkpoints import asked_folder, ranks_here, read_run, refuse_damaged, write_run
from hf_efficient.train.loop_fields import is_due, save_is_due
from hf_efficient.train.order import repeat_orders
from hf_efficient.train.same_run import engine_facts, refuse_another_run, refuse_finished, settings_facts
from hf_efficient.train.undisturbed import random_numbers_kept

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard
    from torch.optim.lr_scheduler import LRScheduler

    from hf_efficient.train.items import Batch
    from hf_efficient.train.windows import Window


class LoopState:
    """The place of a run in its updates and its data; by `plan`'s fields it saves and resumes as Trainer does.

    `done` updates of `updates`, the last of them in epoch `epoch`, of which `taken` micro-batches are used; `tokens`
    label items in all; `losses` are pairs of update and logged loss. Build it before the model: it raises ValueError
    for a checkpoint that is missing, half-written, finished, or of another run (same_run.py).

    Weights, optimizer, fp16's scale and random numbers are saved by `accelerator.save_state`, so under every engine;
    the rest is JSON. Of these files DeepSpeed's alone are unpickled, by DeepSpeed: resume from no stranger's.
    """

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        self.accelerator, self.options = accelerator, SimpleNamespace(**plan["loop"])
        processes = accelerator.num_processes
        samples = plan["dataloader"]["batch_size"] * accelerator.gradient_accumulation_steps * processes
        self.started_as = {"processes": processes, "effective_batch": samples} | settings_facts(self.options)
        fsdp = accelerator.distributed_type.value == "FSDP"
        self.started_as |= engine_facts(accelerator.state.deepspeed_plugin, fsdp=fsdp)
        self.folder = _checkpoint(self.options, self.started_as)
        self.losses: list[tuple[int, float]] = []
        self.done = self.epoch = self.taken = 0
        self.tokens: int | torch.Tensor = 0
        self._iterated, self._seconds = False, 0.0

    def start(self, scheduler: LRScheduler, updates: int) -> None:
        """Begin a run of `updates`, or take it up where its checkpoint was made. Call it right before the loop."""
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        self.scheduler, self.updates = scheduler, updates
        if self.folder is not None:
            _reshard(self.accelerator)
            self.accelerator.load_state(str(self.folder))
            run = read_run(self.folder)
            self.done, self.epoch, self.taken = run["updates"], run["epoch"], run["batches"]
            self.tokens, self.losses = run["tokens"], [(update, loss) for update, loss in run["losses"]]
            scheduler.load_state_dict(run["scheduler"])
        self._behind = self.folder is not None  # a sampler that counts its epochs is at the first
        self._tokens_before = int(self.tokens)
        self._bar = tqdm(total=updates, initial=self.done, disable=not self.accelerator.is_main_process)
        self._since = time.perf_counter()

    def batches(self, loader: DataLoaderShard) -> Iterator[Batch]:
        """Yield what is left of this epoch, in the order of a run that was not interrupted, up to the last update."""
        from accelerate import skip_first_batches

        loader.set_epoch(self.epoch)
        self._length = len(loader)
        if self._behind:
            repeat_orders(loader, self.epoch)
        self._behind = False
        rest = iter(skip_first_batches(loader, self.taken) if self.taken else loader)
        # Making an iterator draws a random number, which the run has drawn before if it is taken up in this epoch, or
        # if the workers persist: they are made once.
        again = self.taken or (self.folder is not None and not self._iterated and loader.persistent_workers)
        with random_numbers_kept() if again else nullcontext():
            first = list(islice(rest, 1))
        self._iterated = self._iterated or not self.taken
        for batch in chain(first, rest):
            if self.done >= self.updates:
                return
            self.taken += 1
            yield batch
        self.epoch, self.taken = self.epoch + 1, 0

    def updated(self, window: Window) -> None:
        """Count an update, show its loss where it is to be logged, and save a checkpoint where one is due."""
        self.done, self.tokens = self.done + 1, self.tokens + window.items
        self._bar.update()
        if is_due(self.options.logging_steps, self.done, updates=self.updates):
            loss = self.accelerator.reduce(window.loss, "sum").item()
            self.losses.append((self.done, loss))
            self._bar.set_postfix(loss=f"{loss:.3f}")
        if save_is_due(self.options, self.done, updates=self.updates, epoch_ended=self._epoch_ended()):
            self._seconds += time.perf_counter() - self._since
            self.save()
            self._since = time.perf_counter()

    def end(self) -> float:
        """Close the progress bar; return the label items per second since `start`, saves left out."""
        self._bar.close()
        tokens = int(self.tokens) - self._tokens_before  # waits for the accelerator
        return tokens / (self._seconds + time.perf_counter() - self._since)

    def save(self) -> None:
        """Write the folder `checkpoint-N`, whole or not at all; every process must call it."""
        from transformers.trainer_utils import rotate_checkpoints

        final = Path(self.options.output_dir) / f"checkpoint-{self.done}"
        part = final.with_name(f"tmp-{final.name}")  # a name that nobody takes for a checkpoint
        accelerator = self.accelerator
        if accelerator.is_main_process:
            for left in final.parent.glob("tmp-checkpoint-*"):  # of a run that ended while it saved
                shutil.rmtree(left)
        accelerator.wait_for_everyone()
        accelerator.save_state(str(part))
        accelerator.wait_for_everyone()  # save_state returns when this process has written
        if accelerator.is_main_process:
            _require_whole(part, range(accelerator.num_processes))
            write_run(part, self.started_as | self._place())
            shutil.rmtree(final, ignore_errors=True)  # of an earlier run that came as far
            part.rename(final)
            rotate_checkpoints(final.parent, self.options.save_total_limit, use_mtime=True)
        accelerator.wait_for_everyone()

    def _epoch_ended(self) -> bool:
        """Say whether the last update had the epoch's last batch: where windows asked for one more, `batches` ended."""
        return self.taken in (0, self._length)

    def _place(self) -> dict[str, Any]:
        ended = self.taken == self._length
        return {
            "updates": self.done,
            "epoch": self.epoch + ended,
            "batches": 0 if ended else self.taken,
            "tokens": int(self.tokens),
            "losses": self.losses,
            "scheduler": self.scheduler.state_dict(),
        }


def _checkpoint(options: SimpleNamespace, now: dict[str, Any]) -> Path | None:
    """Return the folder to go on from, None where the run begins; raise ValueError where it cannot."""
    folder = asked_folder(options.resume_from_checkpoint, options.output_dir)
    if folder is None:
        return None
    run = read_run(folder)
    if "updates" not in run:
        raise ValueError(
            f"{folder} is no checkpoint of this loop: its run.json does not say where the run was. "
            "Trainer's are for recipes/causal_lm.py."
        )
    refuse_another_run(folder, run, now=now)
    names = _random_states(ranks_here(now["processes"]))
    refuse_damaged(folder, (name for name in names if not (folder / name).is_file()))
    refuse_finished(folder, options, updates=run["updates"], epochs=run["epoch"])
    return folder


def _require_whole(folder: Path, ranks: Iterable[int]) -> None:
    """Raise ValueError where the processes have not written to one folder: none of them has a whole checkpoint."""
    if not all((folder / name).is_file() for name in _random_states(ranks)):
        raise ValueError(
            f"{folder} has not what every process wrote: --output_dir must be one folder that all machines see."
        )


def _random_states(ranks: Iterable[int]) -> list[str]:
    return [f"random_states_{rank}.pkl" for rank in ranks]


def _reshard(accelerator: Accelerator) -> None:
    """Free the weights that FSDP2 has kept whole for a backward pass that an evaluation does not have."""
    for model in accelerator._models:
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()

"""One of the processes that sharded.py launches: it trains two updates and leaves what it saw in a folder.

On CPUs with the shims of tests/engines.py, none of which the package has.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from engines import engine_facts, install
from sharded import PER_DEVICE, ROWS, Arm
from torch import nn
from transformers import Trainer, TrainerCallback

import hf_efficient as hf
from hf_efficient.promises.heads import HEADS
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.subject import Subject

QUIET = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "report_to": "none"}
SGD = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "weight_decay": 0.0}
ORDER = {"train_sampling_strategy": "sequential", "num_train_epochs": 1, "remove_unused_columns": False}


def main(arm: Arm, folder: Path) -> None:
    """Train, and leave weights, losses and facts of the engine in `folder`, or the error's last line."""
    try:
        with tiny_subject(HEADS[arm.head](), arm.head, ROWS) as subject:
            seen = _train(arm, subject, folder)
        torch.save(seen, folder / f"{dist.get_rank()}.pt")
    except Exception as error:
        last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        (folder / f"error{os.environ['RANK']}").write_text(last)
        raise
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)  # gloo sometimes aborts while the interpreter exits


def _train(arm: Arm, subject: Subject, folder: Path) -> dict[str, Any]:
    install()
    yours = QUIET | SGD | ORDER | {"per_device_train_batch_size": PER_DEVICE, "use_cpu": True}
    args = hf.training_arguments(arm.plan, output_dir=str(folder), **yours)
    model = subject.model(arm.plan, dropout=False)
    collate = subject.collator(arm.plan, model)
    trainer = Trainer(model, args, data_collator=collate, train_dataset=list(subject.rows))
    if arm.exact:
        hf.exact_accumulation(trainer)
    watch = Watch(trainer)
    trainer.add_callback(watch)
    with watch.losses_noted():
        trainer.train()
    return {"weights": watch.weights, "losses": watch.mean_losses(), "facts": watch.facts}


class Watch(TrainerCallback):
    """Notes whole weights before the first update and after each, losses, and who trains with what share."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.weights: list[torch.Tensor] = []
        self.losses: list[float] = [0.0]
        self.facts: dict[str, Any] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Note the first weights."""
        self.weights.append(whole(self.trainer.model))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the weights after an update, and the engine that made it."""
        self.weights.append(whole(self.trainer.model))
        self.losses.append(0.0)
        self.facts = engine_facts(self.trainer.model_wrapped, self.trainer.model, self.trainer.optimizer)

    @contextmanager
    def losses_noted(self) -> Iterator[None]:
        """Add up what `training_step` returns within each update."""
        step = self.trainer.training_step

        def noted(*args: Any, **keywords: Any) -> torch.Tensor:
            loss: torch.Tensor = step(*args, **keywords)
            self.losses[-1] += float(loss)
            return loss

        self.trainer.training_step = noted
        yield

    def mean_losses(self) -> list[float]:
        """Return the mean over processes of each update's loss, as Trainer logs it."""
        losses = torch.tensor(self.losses[:-1], dtype=torch.float64)
        dist.all_reduce(losses)
        return (losses / dist.get_world_size()).tolist()


def whole(model: nn.Module) -> torch.Tensor:
    """Return all weights as one vector, gathered where they are sharded."""
    parameters = list(model.parameters())
    if hasattr(parameters[0], "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters(parameters):
            return torch.cat([weight.detach().flatten().clone() for weight in parameters])
    full = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in parameters]
    return torch.cat([weight.detach().flatten().clone() for weight in full])


if __name__ == "__main__":
    main(Arm(*json.loads(sys.argv[1])), Path(sys.argv[2]))

"""One epoch over a subject's samples through a door, watched: Trainer, our loop, or yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.promises.apart import apart
from hf_efficient.promises.reference import WEIGHT_DECAY
from hf_efficient.promises.seen import Seen
from hf_efficient.promises.subject import Rows, Subject
from hf_efficient.promises.watch import Watch

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer

Door = Callable[[Plan, Subject, bool], Seen]
"""Trains one epoch as a plan says, with dropout or without."""
MakeTrainer = Callable[..., "Trainer"]
"""Takes Trainer's keywords model, args, data_collator and train_dataset."""
Loop = Callable[[Plan, "nn.Module", Rows, Callable[[Rows], Mapping[str, Any]]], Any]
"""Trains a model, prepared as the plan says, for one epoch over rows in their order, with a collator."""
RATES = {"sgd": 1.0, "adamw": 1e-3}
"""Peak learning rates; weights are put back after each update, so that SGD's can be large enough to be exact."""


def by_trainer(make: MakeTrainer | None = None) -> Door:
    """Return the door of Trainer; without `make` it is transformers' own, after `exact_accumulation`."""

    def train(plan: Plan, subject: Subject, dropout: bool) -> Seen:
        from hf_efficient.emit.trainer import training_arguments

        with apart(), TemporaryDirectory() as folder:
            args = training_arguments(_quiet(plan), output_dir=folder)
            model = subject.model(plan, dropout=dropout)
            rows, collate = packed(plan, subject), subject.collator(plan, model)
            trainer = (make or _exact_trainer)(model=model, args=args, data_collator=collate, train_dataset=rows)
            return _train(trainer, model, Watch(model, inside=not compiles(plan)), rows)

    return train


def by_loop(loop: Loop | None = None) -> Door:
    """Return the door of a hand-written loop; without `loop` it is that of the README."""

    def train(plan: Plan, subject: Subject, dropout: bool) -> Seen:
        from hf_efficient.emit.loop import prepare_model

        with apart():
            plan = _quiet(plan)
            model = prepare_model(plan, subject.model(plan, dropout=dropout))
            rows, collate = packed(plan, subject), subject.collator(plan, model)
            watch = Watch(model, inside=not compiles(plan))
            with watch.on() as seen:
                losses = (loop or _our_loop)(plan, model, rows, collate)
            seen.losses = losses or []
            return seen

    return train


def _exact_trainer(**keywords: Any) -> Trainer:
    from transformers import Trainer

    from hf_efficient.train.accumulation import exact_accumulation

    trainer = Trainer(**keywords)
    with redirect_stdout(StringIO()):
        trainer.accumulation = exact_accumulation(trainer)
    return trainer


def _train(trainer: Trainer, model: nn.Module, watch: Watch, rows: Rows) -> Seen:
    from transformers import PrinterCallback, ProgressCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    step = trainer.training_step
    losses: dict[int, float] = {}

    def noted(*args: Any, **keywords: Any) -> Any:
        loss = step(*args, **keywords)
        update = len(watch.seen.updates)
        losses[update] = losses.get(update, 0.0) + float(loss)
        return loss

    trainer.training_step = noted
    with watch.on() as seen:
        trainer.train()
        if trainer.args.eval_accumulation_steps:
            trainer.evaluate(rows)
    seen.losses = list(losses.values())
    accumulation = getattr(trainer, "accumulation", None)
    seen.report, seen.mended = str(accumulation or ""), bool(accumulation and accumulation.mended)
    return seen


def _our_loop(plan: Plan, model: Any, rows: Any, collate: Any) -> list[float]:
    from torch.utils.data import DataLoader
    from transformers import get_scheduler

    import hf_efficient as hf

    accelerator = hf.make_accelerator(plan)
    loader = DataLoader(**hf.dataloader_keywords(plan, dataset=rows, collate_fn=collate))
    options = plan["loop"]
    optimizer = hf.make_optimizer(plan, model, lr=options["learning_rate"], weight_decay=options["weight_decay"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    updates = -(-len(loader) // accelerator.gradient_accumulation_steps)
    schedule = get_scheduler(options.get("lr_scheduler_type", "linear"), optimizer, 0, updates)
    optimizer.train()
    losses = []
    for window in hf.windows(loader, accelerator):
        for batch in window:
            window.backward(model(**batch, num_items_in_batch=window.items).loss)
        hf.clip(plan, accelerator, model)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(window.loss))
    return losses


def packed(plan: Plan, subject: Subject) -> Any:
    """Return the subject's rows, packed if the plan packs."""
    if not plan["collator"].get("padding_free"):
        return subject.rows
    from datasets import Dataset

    from hf_efficient.train.packing import pack

    longest = max(len(row["input_ids"]) for row in subject.rows)
    return pack(plan, Dataset.from_list(list(subject.rows)), max_length=longest)


def _quiet(plan: Plan) -> Plan:
    """Return `plan` with what a short, comparable run needs where it says nothing: an epoch of SGD, in order."""
    named = bool(plan["trainer"].get("optim"))
    rate, decay = (RATES["adamw"], WEIGHT_DECAY) if named else (RATES["sgd"], 0.0)
    plan = plan.assume(
        "trainer",
        {
            "optim": "sgd",
            "learning_rate": rate,
            "weight_decay": decay,
            "max_grad_norm": 0.0,
            "num_train_epochs": 1,
            "train_sampling_strategy": "sequential",
            "lr_scheduler_type": "linear",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "remove_unused_columns": False,
        },
        by="verify",
    )
    plan = plan.assume("optimizer", {"name": "sgd"}, by="verify")
    return plan.assume("loop", {"learning_rate": rate, "weight_decay": decay}, by="verify")


def compiles(plan: Plan) -> bool:
    """Say whether the model is compiled as a whole or in parts."""
    return bool(plan["accelerator"].get("dynamo_plugin") or plan["trainer"].get("torch_compile"))

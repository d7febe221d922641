"""Mistakes with iterable datasets: repeated by every worker, too few shards, no end, ragged batches put together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.loop import prepared
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings

SHARES = ("worker", "shard")
"""Where such a word occurs in a stream's class, rows may be shared out in a way of its own."""


@check(seen="ran on CPU")
def stream_repeated_by_every_worker(
    data: Settings,
    trainer: Settings = NOTHING,
    dataloader: Settings = NOTHING,
    script: Script | None = None,
) -> Iterator[Finding]:
    """Find an iterable dataset that every worker process reads from its start to its end.

    DataLoader copies an iterable dataset into each worker and puts the workers' batches one after another: without
    torch.utils.data.get_worker_info in __iter__ (or shards, as datasets.IterableDataset has them) every row comes once
    per worker, an epoch is that many times as long, and nobody says so. With 0 or 1 workers nothing is repeated. Where
    the stream shares itself out by ranks or workers in any way, nothing is said.
    """
    owner, who = _loading(trainer, dataloader)
    workers, name = owner.number(who), data.text("class")
    if data.text("kind") != "iterable" or data.get("sharded_by_worker") is not False or not workers > 1:
        return
    if not _may_share(script, name):
        yield error(
            f"{name or 'The iterable dataset'} does not share its rows out, and {who}={workers}",
            why=f"Every worker process reads the whole stream, so each row comes {workers} times, a duplicate per "
            "worker.",
            fix="Let worker i of n take every n-th row in __iter__ by torch.utils.data.get_worker_info(), use a "
            f"sharded datasets.IterableDataset, or set {who}=1.",
            at=owner.where(who),
        )


@check({"datasets": ">=2.0"}, seen="read source")
def fewer_shards_than_workers(
    data: Settings, trainer: Settings = NOTHING, dataloader: Settings = NOTHING
) -> Iterator[Finding]:
    """Find a streamed dataset with fewer shards than worker processes.

    datasets.IterableDataset gives each worker whole shards (a file of data_files is one, to_iterable_dataset makes one
    unless num_shards says more); workers beyond the number of shards stop at once, with a warning in the log, and only
    cost memory and start-up time.
    """
    owner, who = _loading(trainer, dataloader)
    workers, shards = owner.number(who), data.number("num_shards")
    if data.text("kind") == "iterable" and workers > shards >= 1:
        several = "shard" if shards == 1 else "shards"
        yield warning(
            f"The stream has {shards} {several} for {who}={workers}",
            why=f"A worker reads whole shards: {workers - shards} of {workers} workers get nothing to read.",
            fix=f"Set {who}={shards}, or split the data into {workers} files or shards (num_shards={workers}).",
            at=owner.where(who),
        )


def _loading(trainer: Settings, dataloader: Settings) -> tuple[Settings, str]:
    """Return who says how many workers load the rows, and under which name."""
    return (dataloader, "num_workers") if trainer is NOTHING else (trainer, "dataloader_num_workers")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def stream_without_max_steps(trainer: Settings, data: Settings, script: Script | None = None) -> Iterator[Finding]:
    """Find a Trainer on an iterable dataset without max_steps.

    A stream has no length, so the Trainer cannot compute the number of updates from num_train_epochs and refuses
    (ValueError in Trainer.__init__). A stream that defines __len__ is taken.
    """
    steps, name = trainer.get("max_steps"), data.text("class")
    sized = bool(name) and script is not None and f"{name}.__len__" in script.functions
    plain = steps is None or (isinstance(steps, int | float) and steps <= 0)
    if data.text("kind") == "iterable" and plain and not sized and data.off("rows"):
        yield error(
            "An iterable dataset without max_steps",
            why="The dataset has no __len__, so the number of updates is unknown: Trainer raises ValueError.",
            fix="Set max_steps to the number of updates; num_train_epochs does not count for a stream.",
            at=trainer.where("max_steps"),
        )


@check({"accelerate": ">=0.26"}, seen="ran on CPU")
def ragged_batches_dispatched(
    data: Settings,
    trainer: Settings = NOTHING,
    accelerator: Settings = NOTHING,
    sft: Settings = NOTHING,
    processes: int | None = None,
    script: Script | None = None,
) -> Iterator[Finding]:
    """Find a stream whose ragged batches are put together on the main process and dealt out to the others.

    For an iterable dataset dispatch_batches=None means True: the main process reads one batch per process, concatenates
    them and sends slices (accelerate, DataLoaderDispatcher._fetch_batches). Batches padded to their own longest row do
    not fit together, and concatenate fails at the first update with other lengths. dispatch_batches=True does the same
    to datasets that have indices. With fixed lengths, with one process and under SFTTrainer (which switches
    dispatching off for a stream) nothing goes wrong.
    """
    ragged = data.text("padding") == "longest" or data.get("padding") is True
    owner = accelerator if trainer is NOTHING else trainer
    dispatch, split, place = _dispatching(trainer, accelerator)
    stream = data.text("kind") == "iterable" and not sft and dispatch is None
    if not ragged or (processes or 0) < 2 or owner is NOTHING or (trainer is NOTHING and not _prepares(script)):
        return
    if not (stream or dispatch is True) or split is UNKNOWN or split is True:
        return
    new = 'accelerator_config={"dispatch_batches": False}'
    if trainer is NOTHING:
        new = "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))"
    shown = "True" if dispatch is True else "unset, which is True for an iterable dataset"
    yield error(
        f"dispatch_batches is {shown}, in {processes} processes with batches padded to their own longest row",
        why=f"The main process concatenates {processes} batches of different lengths: RuntimeError about tensor sizes.",
        fix=f'Write {new}; the stream is then shared out per process. Or pad to one length (padding="max_length"), or '
        f"set split_batches=True with a batch size divisible by {processes}.",
        at=place,
    )


def _prepares(script: Script | None) -> bool:
    """Does accelerate get a loader to prepare, as far as a script shows?"""
    ready = prepared(script) if script is not None else {}
    return script is None or any(call.target in ready for call in script.named("DataLoader"))


@check({"accelerate": ">=0.26"}, seen="read source")
def split_batch_not_divisible(
    trainer: Settings = NOTHING,
    dataloader: Settings = NOTHING,
    accelerator: Settings = NOTHING,
    processes: int | None = None,
) -> Iterator[Finding]:
    """Find split_batches with a batch size that the number of processes does not divide.

    With split_batches the given batch size is that of all processes together; prepare_data_loader raises ValueError
    where it is no multiple of them. It is also not the size per device that the argument's name says.
    """
    _, split, place = _dispatching(trainer, accelerator)
    own = trainer is NOTHING
    size = dataloader.number("batch_size") if own else trainer.number("per_device_train_batch_size")
    if split is not True or (processes or 0) < 2 or not isinstance(size, int) or processes is None:
        return
    if size % processes:
        yield error(
            f"split_batches=True with a batch of {size} rows for {processes} processes",
            why=f"The batch is split among the processes, and {size} is no multiple of {processes}: accelerate raises "
            "ValueError.",
            fix=f"Give {size * processes} (then {size} per process), or leave split_batches out.",
            at=place,
        )
    else:
        yield info(
            f"split_batches=True: {size} rows are the batch of all {processes} processes together",
            why=f"Each process gets {size // processes} rows and not {size}.",
            fix=f"Give {size * processes} for {size} rows per process.",
            at=place,
        )


@check(seen="ran on CPU")
def shuffled_stream(dataloader: Settings, data: Settings) -> Iterator[Finding]:
    """Find a DataLoader that is to shuffle or to sample an iterable dataset.

    A stream has no indices: DataLoader raises ValueError for shuffle=True, for a sampler and for a batch_sampler.
    """
    given = [key for key in ("shuffle", "sampler", "batch_sampler") if dataloader.on(key)]
    if data.text("kind") == "iterable" and given:
        yield error(
            f"DataLoader({given[0]}=...) over an iterable dataset",
            why=f"A stream cannot be indexed: DataLoader raises ValueError for {given[0]}.",
            fix=f"Leave {given[0]} out and shuffle the stream itself (a buffer in __iter__, or dataset.shuffle("
            "buffer_size=...)), or use a map-style dataset.",
            at=dataloader.where(given[0]),
        )


def _may_share(script: Script | None, name: str) -> bool:
    """May a stream's class of the script share rows out in a way that its calls do not show?"""
    node = script.classes.get(name) if script is not None else None
    text = ast.unparse(node).lower() if node is not None else ""
    return any(word in text for word in SHARES)


def _dispatching(trainer: Settings, accelerator: Settings) -> tuple[Any, Any, Place]:
    """Return dispatch_batches, split_batches and where they stand."""
    none = trainer is NOTHING
    owner, key = (accelerator, "dataloader_config") if none else (trainer, "accelerator_config")
    part = owner.part(key)
    unclear = owner.get(key) is UNKNOWN or (owner.said(key) and not isinstance(owner.get(key), dict | None))
    if unclear:
        return UNKNOWN, UNKNOWN, owner.where(key)
    return part.get("dispatch_batches"), part.get("split_batches"), owner.where(key)

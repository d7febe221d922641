"""Mistakes between DataLoader options, worker processes, samplers and the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, Settings

POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")


def loaders(script: Script | None, dataloader: Settings) -> list[Settings]:
    """Return the keywords of every hand-written torch DataLoader; of the setup's where there is no script."""
    if script is None:
        return [dataloader] if dataloader else []
    return [_keywords(call) for call in script.named("DataLoader") if _is_torchs(call)]


def _is_torchs(call: Call) -> bool:
    return call.name in ("DataLoader", "data.DataLoader") or call.name.startswith("torch.utils.data")


def _keywords(call: Call) -> Settings:
    positional = dict(zip(POSITIONS, call.args, strict=False))
    settings = call.settings()
    return Settings(positional | settings.values, place=call.place, places=settings.places, open=settings.open)


def _workers(loader: Settings) -> Any:
    """Return the number of workers; DataLoader's own default is none."""
    return loader.get("num_workers", 0)


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def persistent_workers_without_workers(
    trainer: Settings = NOTHING, dataloader: Settings = NOTHING, script: Script | None = None
) -> Iterator[Finding]:
    """Find persistent workers where there are no worker processes.

    TrainingArguments take the pair; DataLoader refuses it later, when train() builds the loader: "persistent_workers
    option needs num_workers > 0". A hand-written DataLoader refuses it at once.
    """
    key = "dataloader_persistent_workers"
    if trainer.on(key) and trainer.off("dataloader_num_workers"):
        yield error(
            f"{key}=True with dataloader_num_workers=0",
            why="DataLoader refuses persistent_workers without worker processes, and only once train() has begun.",
            fix="Set dataloader_num_workers to 2 or more, or leave persistent_workers out.",
            at=trainer.where(key),
        )
    for loader in loaders(script, dataloader):
        if loader.on("persistent_workers") and _workers(loader) == 0:
            yield _without_workers(loader, "persistent_workers")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def worker_option_without_workers(
    trainer: Settings = NOTHING, dataloader: Settings = NOTHING, script: Script | None = None
) -> Iterator[Finding]:
    """Find prefetch_factor, timeout or multiprocessing_context where there are no worker processes.

    TrainingArguments refuse dataloader_prefetch_factor with dataloader_num_workers=0 (ValueError of _validate_args);
    DataLoader refuses prefetch_factor and multiprocessing_context (ValueError) and a timeout (AssertionError once it is
    iterated), since they steer the queue of the worker processes.
    """
    keys = ("dataloader_prefetch_factor", "dataloader_multiprocessing_context")
    for key in keys if trainer.off("dataloader_num_workers") else ():
        value = trainer.get(key)
        if trainer.said(key) and trainer.knows(key) and value is not None:
            who = "TrainingArguments raise" if key == keys[0] else "DataLoader raises"
            yield error(
                f"{key}={value!r} with dataloader_num_workers=0",
                why=f"{who} ValueError: the option steers worker processes, and there are none.",
                fix=f"Set dataloader_num_workers to 2 or more, or leave {key} out.",
                at=trainer.where(key),
            )
    for loader in loaders(script, dataloader):
        for key in ("prefetch_factor", "timeout", "multiprocessing_context"):
            given = loader.said(key) and (loader.on(key) or (key == "prefetch_factor" and loader.get(key) == 0))
            if given and _workers(loader) == 0:
                yield _without_workers(loader, key)


def _without_workers(loader: Settings, key: str) -> Finding:
    return error(
        f"DataLoader({key}={loader.get(key)!r}) with num_workers=0",
        why=f"DataLoader refuses {key} without worker processes (num_workers > 0).",
        fix=f"Set num_workers to 2 or more, or leave {key} out.",
        at=loader.where(key),
    )


@check(seen="ran on CPU")
def loader_options_exclude_each_other(
    dataloader: Settings = NOTHING, script: Script | None = None
) -> Iterator[Finding]:
    """Find DataLoader options that exclude each other: a sampler with shuffle, a batch sampler with a batch size.

    torch's DataLoader raises ValueError: who gives a sampler has said the order, who gives a batch_sampler the batches
    too, and batch_size=None (no batches) has no last one to drop.
    """
    for loader in loaders(script, dataloader):
        if loader.on("sampler") and loader.get("shuffle") is True:
            yield _exclusive(loader, "shuffle", "sampler", "Leave shuffle out and let the sampler shuffle.")
        batches = loader.said("batch_sampler") and loader.get("batch_sampler") is not None
        for key in ("batch_size", "shuffle", "sampler", "drop_last") if batches else ():
            if loader.on(key) and not (key == "batch_size" and loader.get(key) == 1):
                yield _exclusive(loader, key, "batch_sampler", f"Leave {key} out: the batch_sampler says it.")
        if loader.said("batch_size") and loader.get("batch_size") is None and loader.on("drop_last") and not batches:
            yield _exclusive(loader, "drop_last", "batch_size=None", "Give a batch_size, or leave drop_last out.")


def _exclusive(loader: Settings, key: str, other: str, fix: str) -> Finding:
    return error(
        f"DataLoader gets {key} together with {other}",
        why="DataLoader raises ValueError: the two are mutually exclusive.",
        fix=fix,
        at=loader.where(key),
    )


@check(seen="read source")
def no_workers_on_a_gpu(trainer: Settings, machine: Settings, data: Settings = NOTHING) -> Iterator[Finding]:
    """Find a Trainer on a GPU that loads and collates its rows in the training process itself.

    dataloader_num_workers is 0 by default: the GPU waits while a batch is read, tokenized and padded. For rows in
    memory and small batches it costs little, so this is only worth knowing. Not said where the rows come from a stream
    that cannot be shared out among workers.
    """
    key = "dataloader_num_workers"
    cuda = machine.text("gpu") and machine.text("accelerator") in ("cuda", "")
    if cuda and trainer.said(key) and trainer.get(key) == 0 and data.text("kind") != "iterable":
        yield info(
            f"{key}=0: the training process loads its own rows",
            why="The GPU waits while each batch is read and collated.",
            fix=f"Try {key}=2 to 4, with dataloader_persistent_workers=True for many short epochs.",
            at=trainer.where(key),
        )


@check(seen="read source")
def pinned_without_gpu(trainer: Settings) -> Iterator[Finding]:
    """Find page-locked host memory asked for where no GPU copies from it.

    Pinning serves the copy to an accelerator. TrainingArguments turn dataloader_pin_memory off by themselves with
    use_cpu=True, and torch ignores it with a warning where there is no accelerator.
    """
    key = "dataloader_pin_memory"
    if trainer.said(key) and trainer.get(key) is True and trainer.on("use_cpu"):
        yield info(
            f"{key}=True with use_cpu=True",
            why="TrainingArguments turn it off on the CPU: there is no device to copy to.",
            fix=f"Leave {key} out.",
            at=trainer.where(key),
        )


@check(seen="read source")
def rows_in_order(dataloader: Settings = NOTHING, script: Script | None = None) -> Iterator[Finding]:
    """Find the one DataLoader of a hand-written training loop that does not shuffle, and says so.

    Rows in the order of the file make neighbouring updates alike. shuffle=False may be meant (a sorted curriculum, rows
    shuffled before), so this is only told where shuffle=False is written out and a training loop runs over that loader.
    """
    for loop in script.training_loops if script is not None else ():
        names = set(_iterated(loop))
        for call in script.named("DataLoader") if script is not None else ():
            if call.target in names and call.keywords.get("shuffle") is False and _is_torchs(call):
                yield info(
                    f"The training loop goes over {call.target}, which does not shuffle",
                    why="Every epoch sees the rows in the same order, and neighbours land in one batch.",
                    fix="Write shuffle=True, unless the order is meant or the rows are shuffled before.",
                    at=call.place,
                )


def _iterated(loop: Any) -> list[str]:
    over = getattr(loop, "iter", None)
    return [node.id for node in ast.walk(over) if isinstance(node, ast.Name)] if over is not None else []


@check({"transformers": ">=5.2"}, seen="read source")
def length_grouping_of_a_stream(trainer: Settings, data: Settings) -> Iterator[Finding]:
    """Find train_sampling_strategy where the rows come as a stream, whose length and order nobody knows.

    The Trainer ignores "group_by_length" and "batch_rebalance" for a dataset without __len__, with a log line
    (trainer.py, _get_train_sampler): a stream gets no sampler at all, its rows are neither shuffled nor grouped.
    """
    how = trainer.text("train_sampling_strategy")
    if data.text("kind") == "iterable" and how in ("group_by_length", "batch_rebalance"):
        yield warning(
            f"train_sampling_strategy={how!r} with an iterable dataset",
            why="It is ignored: a stream has no length and no order to sample from; batches stay ragged.",
            fix="Use a map-style dataset, or pad_to_multiple_of and dataset.shuffle(buffer_size=...).",
            at=trainer.where("train_sampling_strategy"),
        )

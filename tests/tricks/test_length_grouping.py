"""Rows of similar length share a batch, through both doors: less padding, the same rows, a new order each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from doors import DOORS
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from transformers import Trainer

from hf_efficient import dataloader_keywords, make_accelerator, make_plan, training_arguments
from hf_efficient.emit.targets import Options, emit

ROWS = [{"input_ids": torch.full((length,), 7), "labels": number} for number, length in enumerate([*range(1, 65)] * 4)]
Batch = dict[str, torch.Tensor]


def collate(rows: list[Any]) -> Batch:
    """Pad to the longest row with 0 and keep the rows' numbers."""
    padded = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": padded, "labels": torch.tensor([row["labels"] for row in rows])}


def epochs(door: str, name: str, folder: Path) -> Iterator[list[Batch]]:
    """Yield the batches of one epoch after the other as the door's prepared loader gives them."""
    torch.manual_seed(0)
    plan = make_plan(name, "batch_size(8)", "gradient_accumulation(2)")
    if door == "trainer":
        args = training_arguments(plan, output_dir=folder, remove_unused_columns=False)
        model = torch.nn.Linear(1, 1)
        loader = Trainer(model, args, data_collator=collate, train_dataset=ROWS).get_train_dataloader()
    else:
        keywords = dataloader_keywords(plan, dataset=ROWS, shuffle=True, collate_fn=collate)
        loader = make_accelerator(plan).prepare(DataLoader(**keywords))
    for epoch in range(3):
        loader.set_epoch(epoch)
        yield list(loader)


def padding(batches: list[Batch]) -> float:
    """Return the share of the batches that is padding."""
    return 1 - sum(batch["input_ids"].count_nonzero().item() for batch in batches) / sum(
        batch["input_ids"].numel() for batch in batches
    )


def order(batches: list[Batch]) -> list[int]:
    """Return the numbers of the rows in the order in which they came."""
    return [int(number) for batch in batches for number in batch["labels"]]


@DOORS
def test_less_is_padding(door: str, tmp_path: Path) -> None:
    """An epoch of grouped batches has less than half the padding of a random one and begins with the longest row."""
    grouped = next(epochs(door, "length_grouping", tmp_path))
    assert padding(grouped) < 0.5 * padding(next(epochs(door, "adamw_fused", tmp_path)))
    assert grouped[0]["input_ids"].shape[1] == 64


@DOORS
def test_every_epoch_has_all_rows_in_a_new_order(door: str, tmp_path: Path) -> None:
    """Each epoch has every row once, and no two epochs have the same order."""
    orders = [order(batches) for batches in epochs(door, "length_grouping", tmp_path)]
    assert all(sorted(rows) == list(range(len(ROWS))) for rows in orders)
    assert len(set(map(tuple, orders))) == 3


def test_processes_share_one_order() -> None:
    """Two processes, whose own random states differ, draw the same order and take disjoint halves of it."""
    plan, shares = make_plan("length_grouping", "batch_size(8)"), []
    for process in range(2):
        torch.manual_seed(process)
        loader = DataLoader(**dataloader_keywords(plan, dataset=ROWS, shuffle=True))
        shard = BatchSamplerShard(loader.batch_sampler, num_processes=2, process_index=process)
        shares.append([{row for batch in shard for row in batch} for epoch in range(2)])
    for mine, theirs in zip(*shares, strict=True):
        assert not mine & theirs
        assert mine | theirs == set(range(len(ROWS)))


def test_one_group_is_one_update(tmp_path: Path) -> None:
    """Both doors group by batch size x accumulation steps."""
    plan = make_plan("length_grouping", "batch_size(4, effective=16)")
    args = training_arguments(plan, output_dir=tmp_path)
    theirs = Trainer(torch.nn.Linear(1, 1), args, train_dataset=ROWS).get_train_dataloader().batch_sampler.sampler
    ours = dataloader_keywords(plan, dataset=ROWS)["sampler"]
    assert type(ours) is type(theirs)
    assert (ours.batch_size, ours.lengths) == (theirs.batch_size, theirs.lengths) == (16, theirs.lengths)


def test_column_of_lengths_is_taken() -> None:
    """A datasets.Dataset with a column `length` is not read for its lengths."""
    from datasets import Dataset

    data = Dataset.from_dict({"input_ids": [[1], [1, 2], [1]], "length": [30, 10, 20]})
    assert dataloader_keywords(make_plan("length_grouping"), dataset=data)["sampler"].lengths == [30, 10, 20]


def test_your_sampler_wins() -> None:
    """A sampler of yours replaces the grouping, and needs no dataset."""
    mine = SequentialSampler(ROWS)
    assert dataloader_keywords(make_plan("length_grouping"), sampler=mine)["sampler"] is mine


def test_data_that_cannot_be_grouped_are_refused() -> None:
    """Without a dataset there is nothing to group, and a stream has no length: one sentence each."""

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    with pytest.raises(ValueError, match="length_grouping orders the rows by their lengths and has to see them"):
        dataloader_keywords(make_plan("length_grouping"), shuffle=True)
    with pytest.raises(ValueError, match="needs data of a known length, and Stream has none"):
        dataloader_keywords(make_plan("length_grouping"), dataset=Stream())


def test_the_python_lines_group_alike() -> None:
    """The emitted lines for a loop of one's own make the sampler that the plan makes."""
    plan = make_plan("length_grouping", "gradient_accumulation(2)")
    space: dict[str, Any] = {}
    exec(emit(plan, "python", Options(door="accelerate")), space)
    assert "sampler" not in space["loader_keywords"]
    theirs = space["make_sampler"](ROWS, 8)
    ours = dataloader_keywords(plan, dataset=ROWS, batch_size=8)["sampler"]
    assert (type(theirs), theirs.batch_size) == (type(ours), 16)
    assert list(theirs) == list(ours)
    assert isinstance(DataLoader(ROWS, sampler=theirs, **space["loader_keywords"]).batch_sampler, BatchSampler)
    assert len(list(islice(theirs, 5))) == 5

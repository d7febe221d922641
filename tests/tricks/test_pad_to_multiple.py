"""Batches end at a multiple, masked and without labels, through Trainer, a loop and SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from doors import load
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, Trainer
from trl import SFTConfig, SFTTrainer

import hf_efficient as hf

VARIANTS = ["pad_to_multiple(64)"]
ROWS = [{"input_ids": list(range(3, 3 + length))} for length in (5, 11, 9, 20)]


def trainer_batches(plan: Any, tiny: Path, folder: Path) -> list[Any]:
    """Return the batches of Trainer."""
    args = hf.training_arguments(plan, output_dir=folder, train_sampling_strategy="sequential")
    collate = hf.make_collator(plan, AutoTokenizer.from_pretrained(tiny))
    rows = [row | {"labels": row["input_ids"]} for row in ROWS]
    return list(Trainer(load(tiny), args, collate, Dataset.from_list(rows)).get_train_dataloader())


def loop_batches(plan: Any, tiny: Path, folder: Path) -> list[Any]:
    """Return the batches of a hand-written loop."""
    collate = hf.make_collator(plan, AutoTokenizer.from_pretrained(tiny))
    return list(DataLoader([row | {"labels": row["input_ids"]} for row in ROWS], collate_fn=collate, batch_size=2))


def sft_batches(plan: Any, tiny: Path, folder: Path) -> list[Any]:
    """Return the batches of SFTTrainer."""
    args = hf.training_arguments(plan, SFTConfig, output_dir=folder, train_sampling_strategy="sequential")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return list(SFTTrainer(load(tiny), args, train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer)
                .get_train_dataloader())  # fmt: skip


@pytest.mark.parametrize("batches", [trainer_batches, loop_batches, sft_batches])
def test_batches_end_at_a_multiple(batches: Any, tiny: Path, tmp_path: Path) -> None:
    """Two rows of 5 and 11 tokens become 16 wide, of 9 and 20 become 24; what is added is masked and has no label."""
    made = batches(hf.make_plan("pad_to_multiple", "batch_size(2)"), tiny, tmp_path)
    assert [batch["input_ids"].shape[1] for batch in made] == [16, 24]
    for batch, lengths in zip(made, ([5, 11], [9, 20]), strict=True):
        assert batch["attention_mask"].sum(dim=1).tolist() == lengths
        assert batch["labels"].ne(-100).sum(dim=1).tolist() == lengths


@pytest.mark.parametrize("batches", [trainer_batches, loop_batches, sft_batches])
def test_without_it_the_longest_row_decides(batches: Any, tiny: Path, tmp_path: Path) -> None:
    """A plan without the trick pads to the longest row alone."""
    made = batches(hf.make_plan("batch_size(2)"), tiny, tmp_path)
    assert [batch["input_ids"].shape[1] for batch in made] == [11, 20]


def test_rows_without_labels_predict_their_own_tokens(tiny: Path) -> None:
    """Where rows have no labels, every token that is not masked is one."""
    collate = hf.make_collator(hf.make_plan("pad_to_multiple"), AutoTokenizer.from_pretrained(tiny))
    batch = collate([{"input_ids": [3, 4, 5]}, {"input_ids": [6, 7, 0, 0], "attention_mask": [1, 1, 0, 0]}])
    assert batch["labels"].tolist() == [[3, 4, 5, *[-100] * 5], [6, 7, *[-100] * 6]]


@pytest.mark.parametrize("key", ["label", "labels"])
def test_rows_of_one_label_keep_it(key: str, tiny: Path) -> None:
    """Rows of a classification are padded, and their labels are one number each."""
    collate = hf.make_collator(hf.make_plan("pad_to_multiple"), AutoTokenizer.from_pretrained(tiny))
    batch = collate([{"input_ids": [3, 4, 5], key: 1}, {"input_ids": [6], key: 0}])
    assert batch["input_ids"].shape == (2, 8)
    assert batch["labels"].tolist() == [1, 0]

"""exact_accumulation: every head's update of unequal micro-batches is that of one big batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
import transformers as tf
from heads import HEADS
from losses import Finding, Own, drops_items, needs_items, unshifted, with_items
from torch import nn
from torch.utils.data import default_collate
from trained import Rows, assert_equal, big_batch, model_of, trainer_of, update_of

import hf_efficient as hf


def mended_update(model: nn.Module, rows: Rows, folder: Path, **more: Any) -> tuple[torch.Tensor, Any]:
    """Return the update of a mended trainer, and what it said."""
    trainer = trainer_of(copy.deepcopy(model), rows, folder, **more)
    report = hf.exact_accumulation(trainer)
    return update_of(trainer), report


@pytest.mark.launch
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_every_head_moves_as_with_one_big_batch(name: str, size: int, tmp_path: Path) -> None:
    """Four unequal micro-batches are one big batch; the stock Trainer is off by the head's own factor."""
    head, names = HEADS[name], ["targets"] if name == "distances" else None
    model, rows = model_of(head.build), head.rows()[: 4 * size]
    flags: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 4,
        "label_names": names,
    }
    whole = big_batch(model, rows)
    stock = update_of(trainer_of(copy.deepcopy(model), rows, tmp_path, **flags))
    update, report = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, whole)
    assert report.factor == pytest.approx(head.factor, abs=1e-6)
    assert (stock.norm() / whole.norm()).item() == pytest.approx(head.factor, rel=0.2)
    right = ("llama", "qwen3", "gemma3", "mixtral", "llava", "vit")
    assert report.mended == (name not in right)
    if name in right:
        assert torch.equal(stock, update)


@pytest.mark.launch
@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", "regression", "t5", "answers", "plain"])
def test_an_uneven_last_window_counts_itself(name: str, tmp_path: Path) -> None:
    """Ten rows in micro-batches of two and windows of three leave a window of two, which is its own big batch."""
    head = HEADS[name]
    model, rows = model_of(head.build), head.rows()[:10]
    first = big_batch(model, rows[:6])
    moved = copy.deepcopy(model)
    with torch.no_grad():
        trained = [weight for weight in moved.parameters() if weight.requires_grad]
        for weight, step in zip(trained, first.split([weight.numel() for weight in trained]), strict=True):
            weight -= step.view_as(weight).float()
    expected = first + big_batch(moved, rows[6:])
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_steps": 2}
    assert_equal(mended_update(model, rows, tmp_path, **flags)[0], expected)


LOSSES = [
    ("llama", {"kind": Own}, 4),
    (
        "llama",
        {"compute_loss_func": with_items},
        9 / 6,
    ),  # stock counts labels as if they were shifted: the three rows that are tried have 2, 3 and 4
    ("bert", {"compute_loss_func": with_items}, 1),
    ("bert", {"compute_loss_func": needs_items}, 1),
    ("bert", {"compute_loss_func": drops_items}, 4),
]


@pytest.mark.parametrize(("name", "more", "factor"), LOSSES)
def test_losses_of_your_own_are_tried_too(name: str, more: dict[str, Any], factor: float, tmp_path: Path) -> None:
    """A subclass's compute_loss and a compute_loss_func, with and without the number of items, make the big batch."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, **more}
    update, report = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows, loss_of=unshifted))
    assert (report.mended, report.factor) == (factor != 1, pytest.approx(factor))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "roberta"])
def test_label_smoothing_is_exact(name: str, tmp_path: Path) -> None:
    """With label smoothing, four micro-batches are one big batch by Trainer's own smoother."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    smooth = tf.trainer_pt_utils.LabelSmoother(0.1)

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        labels = batch.pop("labels")
        return smooth(model(**batch), labels, shift_labels=name in ("llama", "gpt2"))

    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "label_smoothing_factor": 0.1}
    update, _ = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows, loss_of=loss_of))


@pytest.mark.parametrize("name", ["bert", "t5", "distilbert"])
def test_a_micro_batch_without_labels_adds_nothing(name: str, tmp_path: Path) -> None:
    """Where a micro-batch has no labels, whose mean is 0 / 0, the update is that of the others and finite."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    for row in rows[2:4]:
        row["labels"] = torch.full_like(row["labels"], -100)
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    update, _ = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows))


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_weights_in_16_bits_are_tried_too(name: str, tmp_path: Path) -> None:
    """The rounding of a loss in bfloat16 is not taken for rows that depend on each other."""
    trainer = trainer_of(model_of(HEADS[name].build).bfloat16(), HEADS[name].rows(), tmp_path, bf16=True,
                         gradient_accumulation_steps=4)  # fmt: skip
    report = hf.exact_accumulation(trainer)
    assert (report.mended, report.factor) == (True, pytest.approx(HEADS[name].factor))


def test_a_report_is_a_sentence_with_the_factor(tmp_path: Path) -> None:
    """What stock Trainer would have done, why, and what was done about it."""
    trainer = trainer_of(model_of(HEADS["bert"].build), heads.causal(), tmp_path, gradient_accumulation_steps=4)
    assert str(hf.exact_accumulation(trainer)) == (
        "BertForMaskedLM drops num_items_in_batch: stock Trainer would multiply loss and gradient by 4 (4 accumulation "
        "steps). Each of the labels of an update counts the same now."
    )


def test_the_evaluation_loss_of_a_mended_trainer_is_the_mean(tmp_path: Path) -> None:
    """What a mended trainer evaluates is the mean loss of the batch, not what training weighs."""
    model, rows = model_of(HEADS["bert"].build), HEADS["bert"].rows()[:8]
    flags = {"gradient_accumulation_steps": 4, "per_device_eval_batch_size": 8}
    trainer = trainer_of(model, rows, tmp_path, eval_dataset=rows, **flags)
    hf.exact_accumulation(trainer)
    with torch.no_grad():
        expected = model.eval()(**default_collate(rows)).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_what_is_evaluated_without_labels_is_as_before(tmp_path: Path) -> None:
    """A model that finds its loss without labels is evaluated by that loss, though it was trained with labels."""
    rows = HEADS["bert"].rows()[:8]
    bare = [{"input_ids": row["input_ids"]} for row in rows]
    flags = {"gradient_accumulation_steps": 4, "label_names": [], "eval_dataset": bare}
    trainer = trainer_of(model_of(Finding), rows, tmp_path, **flags)
    expected = trainer.evaluate()["eval_loss"]
    assert hf.exact_accumulation(trainer).mended
    assert trainer.evaluate()["eval_loss"] == expected


@pytest.mark.parametrize("name", ["bert", "gpt2", "plain"])
def test_the_logged_loss_is_that_of_the_big_batch(name: str, tmp_path: Path) -> None:
    """What is logged is the mean over all labels of the update; a micro-batch without any does not make it nan."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    for row in rows[2:4]:
        row["labels"] = torch.full_like(row["labels"], -100)
    flags = {"logging_strategy": "steps", "logging_steps": 1, "logging_nan_inf_filter": False}
    flags |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = trainer_of(copy.deepcopy(model), rows, tmp_path, **flags)
    assert hf.exact_accumulation(trainer).mended
    trainer.train()
    (logged,) = (entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(model(**default_collate(rows))["loss"].item(), rel=1e-6)


@pytest.mark.launch
def test_adapters_are_tried_through_their_wrapper(tmp_path: Path) -> None:
    """A model with LoRA moves as with one big batch."""
    peft = pytest.importorskip("peft")
    rows = HEADS["bert"].rows()[:8]
    config = peft.LoraConfig(target_modules=["query"], init_lora_weights=False)
    model = peft.get_peft_model(model_of(HEADS["bert"].build), config)
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "label_names": ["labels"]}
    # Gradients of adapters are small beside their weights; a larger step keeps them above the weights' rounding.
    update, report = mended_update(model, rows, tmp_path, **flags, learning_rate=1e4)
    assert_equal(update, 1e4 * big_batch(model, rows))
    assert report.factor == 4

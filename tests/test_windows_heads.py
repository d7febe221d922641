"""Windows and the evaluation loss, for every kind of head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trained
from accelerate import Accelerator
from heads import HEADS, without_dropout
from losses import COUPLED
from torch.utils.data import DataLoader

import hf_efficient as hf
from hf_efficient.train.evaluate import mean_label_loss

pytestmark = pytest.mark.launch  # a minute together


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_one_line_is_exact_for_every_head(name: str, size: int, given: bool) -> None:
    """With the number of items or without it, the model's own loss makes the big batch; in an uneven window too."""
    torch.manual_seed(0)
    model, rows = without_dropout(HEADS[name].build()).train(), HEADS[name].rows()[: 6 * size]
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(4)"))
    prepared, loader = accelerator.prepare(model, DataLoader(rows, batch_size=size))
    takes, done = given and name != "plain", 0
    for window in hf.windows(loader, accelerator):
        expected = trained.big_batch(model, rows[done : done + 4 * size])
        for batch in window:
            output = prepared(**batch, **({"num_items_in_batch": window.items} if takes else {}))
            window.backward(output["loss"])
        trained.assert_equal(trained.gradients(model), expected)
        model.zero_grad()
        done += 4 * size
    assert "OwnLoss" not in str([module._forward_hooks for module in model.modules()])


def a_window_with_a_bare_micro_batch() -> tuple[Any, Any, Any, Any]:
    """Return BERT, its rows, the prepared model and their one window, whose second micro-batch has no labels."""
    model, rows = without_dropout(HEADS["bert"].build()).train(), HEADS["bert"].rows()[:8]
    for row in rows[2:4]:
        row["labels"] = torch.full_like(row["labels"], -100)
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(4)"))
    prepared, loader = accelerator.prepare(model, DataLoader(rows, batch_size=2))
    (window,) = hf.windows(loader, accelerator)
    return model, rows, prepared, window


def test_a_micro_batch_without_labels_adds_nothing() -> None:
    """A mean of 0 / 0 in one micro-batch is finite and weighs nothing."""
    model, rows, prepared, window = a_window_with_a_bare_micro_batch()
    for batch in window:
        window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
    assert torch.isfinite(window.loss)
    trained.assert_equal(trained.gradients(model), trained.big_batch(model, rows))


def test_a_summed_loss_counts_no_label_that_is_not_there() -> None:
    """The batches of a loop are its own: a micro-batch without labels adds nothing to a loss of the loop's."""
    model, rows, prepared, window = a_window_with_a_bare_micro_batch()
    for batch in window:
        logits, labels = prepared(**batch).logits, batch["labels"]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        window.backward(loss / window.items)
    trained.assert_equal(trained.gradients(model), trained.big_batch(model, rows))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("given", [True, False])
def test_two_forward_passes_are_two_losses_of_the_model(name: str, given: bool) -> None:
    """Each loss of the model is weighed, whatever it computed before the backward pass."""
    model, rows = without_dropout(HEADS[name].build()).train(), HEADS[name].rows()[:8]
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(4)"))
    prepared, loader = accelerator.prepare(model, DataLoader(rows, batch_size=2))
    for window in hf.windows(loader, accelerator):
        for batch in window:
            more = {"num_items_in_batch": window.items} if given else {}
            first = prepared(**batch, **more).loss
            second = prepared(**{**batch, "input_ids": batch["input_ids"].flip(1)}, **more).loss
            with torch.no_grad():
                prepared(input_ids=batch["input_ids"])
            window.backward(first)
            window.backward(second)
    flipped = [{**row, "input_ids": row["input_ids"].flip(0)} for row in rows]
    both = trained.big_batch(model, rows) + trained.big_batch(model, flipped)
    trained.assert_equal(trained.gradients(model), both)


@pytest.mark.parametrize("name", HEADS)
def test_the_mean_loss_of_unequal_batches_is_that_of_all_rows(name: str) -> None:
    """What evaluation returns does not depend on how rows lie in batches, and is the head's own mean."""
    model, rows = HEADS[name].build().eval(), HEADS[name].rows()[:7]
    accelerator = Accelerator()
    with torch.no_grad():
        expected = model(**next(iter(DataLoader(rows, batch_size=7))))["loss"].item()
    prepared, loader = accelerator.prepare(model, DataLoader(rows, batch_size=2))
    assert mean_label_loss(prepared, loader, accelerator) == pytest.approx(expected, rel=1e-5)


def test_windows_warn_where_rows_depend_on_each_other() -> None:
    """A loss that is no mean over items cannot be made exact, and one sentence says so."""
    build, rows, _, reason = COUPLED["BertForPreTraining"]
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)"))
    _, loader = accelerator.prepare(build(), DataLoader(rows(), batch_size=4))
    with pytest.warns(UserWarning, match=reason):
        next(hf.windows(loader, accelerator))


def test_a_loop_that_breaks_out_of_its_window_can_update() -> None:
    """After a break in the middle of a window accelerate holds no step back."""
    model, rows = without_dropout(HEADS["bert"].build()).train(), HEADS["bert"].rows()[:8]
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(4)"))
    prepared, loader = accelerator.prepare(model, DataLoader(rows, batch_size=2))
    for window in hf.windows(loader, accelerator):
        for batch in window:
            window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
            break
        assert accelerator.sync_gradients

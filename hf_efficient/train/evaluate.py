"""The mean loss per item of a model over a loader, for a hand-written loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_efficient.train.batches import row_count, sliced
from hf_efficient.train.items import IGNORED, Batch, counters, shifts_labels
from hf_efficient.train.own_loss import loss_in, own_loss
from hf_efficient.train.probe import Verdict, probe

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


def mean_label_loss(model: nn.Module, loader: Iterable[Batch], accelerator: Accelerator) -> float:
    """Return the loss in nats per label (row, where the loss is a mean over rows) over all batches and processes.

    Each counts the same. The model is left in the mode that it was in.
    """
    import torch

    training, inner = model.training, accelerator.unwrap_model(model, keep_torch_compile=False)
    model.eval()
    total, verdict = torch.zeros(2, dtype=torch.float32, device=accelerator.device), None
    with torch.no_grad():
        for batch in loader:
            verdict = verdict or probe(own_loss(inner, accelerator), [batch])
            batch, there = _without_repeated_rows(batch, accelerator)
            loss, items = _loss_and_items(model, batch, verdict=verdict)
            items = items * there
            total += torch.stack([loss.float() * items, items.float()])
    model.train(training)
    loss, items = accelerator.reduce(total, "sum").tolist()
    return float(loss / items) if items else float("nan")


def _loss_and_items(model: nn.Module, batch: Batch, *, verdict: Verdict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss of one batch, and over how many items."""
    counter = verdict.counter or counters(batch, names=(), shifted=shifts_labels(model))[0]
    items = counter(batch)
    if verdict.has_mean and not verdict.untried:
        loss = loss_in(model(**counter.with_an_item(batch)))
    else:
        loss = loss_in(model(**batch, num_items_in_batch=items.clamp(min=1)))
    if loss is None:
        raise ValueError("mean_label_loss() needs a loss, and the model returned none: add `labels` to the batches.")
    return loss, items


def _without_repeated_rows(batch: Batch, accelerator: Accelerator) -> tuple[Batch, bool]:
    """Return `batch` without the rows that accelerate repeats at the end to give each process as many.

    A process that has nothing but such rows keeps one, for the forward pass that others may wait for, and a False.
    """
    state = accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0:
        return batch, True
    key = "labels" if "labels" in batch else next(iter(batch))
    rows = len(batch[key])
    kept = max(state.remainder - accelerator.process_index * rows, 0)
    if row_count(batch, key) or key != "labels":
        return sliced(batch, 0, max(kept, 1), rows=rows), kept > 0
    labels = batch["labels"].clone()
    labels[kept:] = IGNORED
    return {**batch, "labels": labels}, kept > 0

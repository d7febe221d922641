"""The mean loss per label of a model over a loader, for a hand-written loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_efficient.train.items import IGNORED, Batch, label_items, shifts_labels

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def mean_label_loss(model: nn.Module, loader: Iterable[Batch], accelerator: Accelerator) -> float:
    """Return the loss in nats per label over all batches and processes; each label counts the same.

    The model is left in the mode that it was in.
    """
    import torch

    training, shifted = model.training, shifts_labels(accelerator.unwrap_model(model, keep_torch_compile=False))
    model.eval()
    total = torch.zeros(2, dtype=torch.float32, device=accelerator.device)
    with torch.no_grad():
        for batch in loader:
            batch = _without_repeated_rows(batch, accelerator)
            items = label_items(batch, shifted=shifted)
            loss = model(**batch, num_items_in_batch=items.clamp(min=1)).loss
            total += torch.stack([loss.float() * items, items.float()])
    model.train(training)
    loss, items = accelerator.reduce(total, "sum").tolist()
    return float(loss / items) if items else float("nan")


def _without_repeated_rows(batch: Batch, accelerator: Accelerator) -> Batch:
    """Return `batch` without the labels of rows that accelerate repeats at the end to give each process as many."""
    state, rows = accelerator.gradient_state, len(batch["labels"])
    if not state.end_of_dataloader or state.remainder <= 0:
        return batch
    kept = max(state.remainder - accelerator.process_index * rows, 0)
    labels = batch["labels"].clone()
    labels[kept:] = IGNORED
    return {**batch, "labels": labels}

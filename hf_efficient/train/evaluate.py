"""The mean loss per label of a model over a loader, for a hand-written loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_efficient.train.windows import Batch, label_items, shifts_labels

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def mean_label_loss(model: nn.Module, loader: Iterable[Batch], accelerator: Accelerator) -> float:
    """Return the loss in nats per label over all batches and processes; each label counts the same.

    The model is left in the mode that it was in.
    """
    import torch

    training, shifted = model.training, shifts_labels(accelerator.unwrap_model(model))
    model.eval()
    total = torch.zeros(2, dtype=torch.float32, device=accelerator.device)
    with torch.no_grad():
        for batch in loader:
            items = label_items(batch, shifted=shifted).clamp(min=1)
            total += torch.stack([model(**batch, num_items_in_batch=items).loss.float() * items, items.float()])
    model.train(training)
    loss, items = accelerator.reduce(total, "sum").tolist()
    return float(loss / items)

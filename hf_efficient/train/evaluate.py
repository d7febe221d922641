"""The mean loss per item of a model over a loader, for a hand-written loop, and for Trainer where its own is wrong."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hf_efficient.emit.head import shifts_labels
from hf_efficient.train.batches import row_count, sliced
from hf_efficient.train.items import IGNORED, Batch, counters
from hf_efficient.train.own_loss import loss_in, own_loss
from hf_efficient.train.probe import LossKind, probe
from hf_efficient.train.undisturbed import random_numbers_kept

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn
    from transformers import Trainer


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
            there = _real_rows(batch, accelerator) > 0
            loss, items = _loss_and_items(model, _without_repeated_rows(batch, accelerator), verdict=verdict)
            items = items * there
            total += torch.stack([loss.float() * items, items.float()])
    model.train(training)
    loss, items = accelerator.reduce(total, "sum").tolist()
    return float(loss / items) if items else float("nan")


def exact_evaluation(trainer: Trainer) -> None:
    """Let `trainer` tell the loss per label where its evaluation repeats rows to give each process as many.

    Stock Trainer divides each process's loss by the labels of all, those of repeated rows among them, and then counts
    the first processes' alone. Such an evaluation takes a second pass here; all others, and losses of your own
    (label_smoothing_factor, compute_loss_func), stay as they are.
    """
    stock, itself = (
        type(trainer).evaluation_loop,
        weakref.ref(trainer),
    )  # a cycle would outlive the run, with its memory

    def evaluation_loop(dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **keywords: Any) -> Any:
        trainer = itself()
        assert trainer is not None
        output = stock(trainer, dataloader, *args, metric_key_prefix=metric_key_prefix, **keywords)
        key, own = f"{metric_key_prefix}_loss", trainer.label_smoother or trainer.compute_loss_func
        if key in output.metrics and own is None and _repeats_rows(dataloader, trainer):
            with random_numbers_kept():
                output.metrics[key] = mean_label_loss(trainer.model_wrapped, dataloader, trainer.accelerator)
        return output

    trainer.evaluation_loop = evaluation_loop


def _repeats_rows(loader: Any, trainer: Trainer) -> bool:
    processes = trainer.accelerator.num_processes
    return processes > 1 and bool(len(loader.dataset) % (trainer.args.eval_batch_size * processes))


def _loss_and_items(model: nn.Module, batch: Batch, *, verdict: LossKind) -> tuple[torch.Tensor, torch.Tensor]:
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


def _without_repeated_rows(batch: Batch, accelerator: Accelerator) -> Batch:
    """Return `batch` without the rows that accelerate repeats at the end to give each process as many.

    A process that has nothing but such rows keeps one, without labels, for the forward pass that others may wait for.
    """
    kept, key = _real_rows(batch, accelerator), _row_key(batch)
    rows = len(batch[key])
    if kept == rows:
        return batch
    if row_count(batch, key):
        batch = sliced(batch, 0, max(kept, 1), rows=rows)
    if key != "labels" or batch[key].is_floating_point():
        return batch
    labels = batch[key].clone()
    labels[kept:] = IGNORED
    return {**batch, key: labels}


def _real_rows(batch: Batch, accelerator: Accelerator) -> int:
    """Return how many rows of this process's batch are no repeats."""
    state, rows = accelerator.gradient_state, len(batch[_row_key(batch)])
    if not state.end_of_dataloader or state.remainder <= 0:
        return rows
    kept: int = min(max(state.remainder - accelerator.process_index * rows, 0), rows)
    return kept


def _row_key(batch: Batch) -> str:
    return "labels" if "labels" in batch else next(iter(batch))

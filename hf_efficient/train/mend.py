"""Weigh a trainer's micro-batches by their items, on this one trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hf_efficient.train.items import Batch, Counter
from hf_efficient.train.probe import LossKind
from hf_efficient.train.stock import unscaled

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn
    from transformers import Trainer


def items_of_window(batches: list[Batch], accelerator: Accelerator, *, counter: Counter) -> Tensor:
    """Return the items of `batches` over all processes, at least 1: a window without items has a loss of 0."""
    counts = [counter(batch).to(accelerator.device) for batch in batches]
    total: Tensor = accelerator.reduce(sum(counts[1:], counts[0]), "sum")
    return total.clamp(min=1)


def mend(trainer: Trainer, verdict: LossKind, *, loss_scale: float) -> None:
    """Exchange `get_batch_samples` and `compute_loss` of `trainer`, so that each micro-batch counts by its items."""
    counter, collect, original = verdict.counter, trainer.get_batch_samples, trainer.compute_loss
    assert counter is not None

    def get_batch_samples(epoch_iterator: Iterator[Batch], num_batches: int, device: Any) -> tuple[list[Batch], Any]:
        batches, _ = collect(epoch_iterator, num_batches, device)
        # Other processes may have batches left, and wait for this one's count.
        return batches, items_of_window(batches, trainer.accelerator, counter=counter) if batches else None

    def compute_loss(
        model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Tensor | None = None
    ) -> Any:
        if not model.training and counter.key not in inputs:  # an evaluation without labels
            with unscaled(trainer):
                return original(model, inputs, return_outputs=return_outputs, num_items_in_batch=None)
        items = counter(inputs)
        total = num_items_in_batch if model.training and num_items_in_batch is not None else items.clamp(min=1)
        # Data parallelism averages gradients over processes; the total is of all of them.
        processes = trainer.accelerator.num_processes if model.training else 1
        if verdict.has_mean:
            given, weight, inputs = None, processes * items / total, counter.with_an_item(inputs)
        else:
            given, weight = total, processes
        with unscaled(trainer):
            got = original(model, dict(inputs), return_outputs=return_outputs, num_items_in_batch=given)
        return (got[0] * weight, got[1]) if return_outputs else got * weight

    trainer.get_batch_samples, trainer.compute_loss = get_batch_samples, compute_loss
    trainer.loss_is_scaled_for_ga = True

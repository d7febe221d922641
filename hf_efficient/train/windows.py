"""One update's micro-batches at a time, weighted by their labelled tokens: accumulation that equals one big batch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

from hf_efficient.train.items import Batch, label_items, shifts_labels

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


class Window:
    """The micro-batches of one update; iterate over it once, with a forward and `backward` for each.

    `items` is the number of labelled items of the update over all processes, `loss` what this process has added to
    their mean loss so far; both are tensors without dimensions.
    """

    def __init__(self, batches: list[Batch], accelerator: Accelerator, *, model: nn.Module, shifted: bool) -> None:
        counts = [label_items(batch, shifted=shifted) for batch in batches]
        total: torch.Tensor = accelerator.reduce(sum(counts[1:], counts[0]).to(accelerator.device), "sum")
        # A window without labels has a loss of 0, not of 0 / 0.
        self.items = total.clamp(min=1)
        self.loss: torch.Tensor = self.items.float().new_zeros(())
        self._batches, self._accelerator, self._model = batches, accelerator, model

    def __iter__(self) -> Iterator[Batch]:
        """Yield the micro-batches; gradients are exchanged on the last one only."""
        last = len(self._batches) - 1
        for number, batch in enumerate(self._batches):
            self._accelerator.sync_gradients = number == last
            with ExitStack() as stack:
                if number != last:
                    stack.enter_context(self._accelerator.no_sync(self._model))
                yield batch

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of one micro-batch, whose loss is a sum over its items divided by `items`.

        accelerate (DeepSpeed's engine likewise) divides by the accumulation steps and data parallelism averages over
        processes; `items` has already divided by all of them, so both are undone.
        """
        self.loss += loss.detach()
        steps, processes = self._accelerator.gradient_accumulation_steps, self._accelerator.num_processes
        self._accelerator.backward(loss * (steps * processes))


def windows(loader: Iterable[Batch], accelerator: Accelerator) -> Iterator[Window]:
    """Yield `loader`'s batches in windows of `accelerator.gradient_accumulation_steps`; the last may be shorter.

    For each window: `for batch in window: window.backward(model(**batch, num_items_in_batch=window.items).loss)`,
    then clip, `optimizer.step()`, `scheduler.step()`, `optimizer.zero_grad()`. A model that does not take
    `num_items_in_batch` passes its summed loss / `window.items`. Each item counts the same, however unequal the
    micro-batches are; the usual mean of means does not do that.

    Call it after `accelerator.prepare(model, ...)`. Raises ValueError when the batches have no labels.
    """
    model, batches = _prepared_model(accelerator), iter(loader)
    inner = accelerator.unwrap_model(model, keep_torch_compile=False)
    shifted = shifts_labels(inner)
    if not shifted:
        # Most other heads accept num_items_in_batch and drop it; their mean losses would add up.
        warnings.warn(
            f"{type(inner).__name__} may ignore num_items_in_batch: give backward the summed loss / window.items.",
            stacklevel=2,
        )
    while window := list(islice(batches, accelerator.gradient_accumulation_steps)):
        yield Window(window, accelerator, model=model, shifted=shifted)


def _prepared_model(accelerator: Accelerator) -> nn.Module:
    # accelerate keeps what it prepared only there, and a loop should not have to name its model twice.
    if not accelerator._models:
        raise ValueError("windows() needs the prepared model: call accelerator.prepare(model, ...) before it.")
    model: nn.Module = accelerator._models[-1]
    return _data_parallel(model) if accelerator.num_processes > 1 else model


def _data_parallel(model: nn.Module) -> nn.Module:
    """Return the DistributedDataParallel around `model`, else `model`."""
    from torch.nn.parallel import DistributedDataParallel

    # accelerate keeps the model and not the wrapper, and only the wrapper can hold the exchange of gradients back.
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel))
    return next((wrapper for wrapper in found if wrapper.module is model), model)

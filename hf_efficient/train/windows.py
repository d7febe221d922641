"""One update's micro-batches at a time, weighted by the items of their loss: accumulation that equals one big batch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from hf_efficient.emit.head import shifts_labels
from hf_efficient.train.items import Batch, Counter, counters
from hf_efficient.train.mend import items_of_window
from hf_efficient.train.own_loss import OwnLoss, own_loss
from hf_efficient.train.probe import LossKind, probe

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


class Loop(NamedTuple):
    """What all windows of one loop share; `model` is the one that can hold the exchange of gradients back."""

    accelerator: Accelerator
    model: nn.Module
    verdict: LossKind
    counter: Counter
    seen: OwnLoss


class Window:
    """The micro-batches of one update; iterate over it once, with a forward and `backward` for each.

    `items` is the number of items of the update over all processes (labels, rows: what the loss is the mean over),
    `loss` what this process has added to their mean loss so far; both are tensors without dimensions.
    """

    def __init__(self, batches: list[Batch], loop: Loop) -> None:
        self.items = items_of_window(batches, loop.accelerator, counter=loop.counter)
        self.loss: torch.Tensor = self.items.float().new_zeros(())
        self._batches, self._loop = batches, loop
        self._weight = self.loss

    def __iter__(self) -> Iterator[Batch]:
        """Yield the micro-batches; gradients are exchanged on the last one only."""
        last = len(self._batches) - 1
        accelerator, counter = self._loop.accelerator, self._loop.counter
        try:
            for number, batch in enumerate(self._batches):
                accelerator.sync_gradients = number == last
                self._loop.seen.values = ()
                self._weight = counter(batch).to(self.items.device) / self.items
                with ExitStack() as stack:
                    stack.enter_context(self._loop.seen.watched())  # windows kept in a list outlive the loop over them
                    if number != last:
                        stack.enter_context(accelerator.no_sync(self._loop.model))
                    yield batch
        finally:  # a loop that breaks out of its window may update all the same
            accelerator.sync_gradients = True

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of one micro-batch, with the model's own loss or a sum over its items / `items`.

        The model's own loss, unchanged, is weighed by the items of its micro-batch where it is a mean over them.
        accelerate (DeepSpeed's engine likewise) divides by the accumulation steps and data parallelism averages over
        processes; `items` has already divided by all of them, so both are undone.
        """
        verdict, seen, accelerator = self._loop.verdict, self._loop.seen, self._loop.accelerator
        unknown, summed = verdict.counter is None and verdict.untried, verdict.divides or verdict.part
        own = None if unknown else seen.is_that(loss, given=not summed)
        if own is not None:
            loss = loss * self._weight.where(own, self._weight.new_ones(()))
        self.loss += loss.detach()
        accelerator.backward(loss * (accelerator.gradient_accumulation_steps * accelerator.num_processes))


def windows(loader: Iterable[Batch], accelerator: Accelerator) -> Iterator[Window]:
    """Yield `loader`'s batches in windows of `accelerator.gradient_accumulation_steps`; the last may be shorter.

    For each window: `for batch in window: window.backward(model(**batch, num_items_in_batch=window.items).loss)`,
    then clip, `optimizer.step()`, `scheduler.step()`, `optimizer.zero_grad()`. Each item counts the same, however
    unequal the micro-batches are; the usual mean of means does not do that. What the items are, and whether the model
    divides by their number or drops it, is tried on the first window, without a trace. A model that is not called so
    passes its summed loss / `window.items`.

    Call it after `accelerator.prepare(model, ...)`. Warns where accumulation changes the training because the loss is
    no mean over items. Raises ValueError when the batches have no labels and the model returns no loss.
    """
    model, batches = _prepared_model(accelerator), iter(loader)
    inner = accelerator.unwrap_model(model, keep_torch_compile=False)
    window = list(islice(batches, accelerator.gradient_accumulation_steps))
    if not window:
        return
    verdict = probe(own_loss(inner, accelerator), window)
    counter = _counter(verdict, window[0], inner)
    means = verdict.counter is not None and not verdict.divides
    seen = OwnLoss([inner, accelerator._models[-1], model], counter if means else None)
    with seen.watched():
        while window:
            yield Window(window, Loop(accelerator, model, verdict, counter, seen))
            window = list(islice(batches, accelerator.gradient_accumulation_steps))


def _counter(verdict: LossKind, batch: Batch, model: nn.Module) -> Counter:
    """Return what to count the items by; warn where the windows will not be one big batch, or may not be."""
    name, shifted = type(model).__name__, shifts_labels(model)
    if verdict.problem:
        warnings.warn(f"Accumulation changes how {name} trains: {verdict.problem}.", stacklevel=3)
    elif verdict.untried and verdict.counter is not None and not verdict.divides:
        warnings.warn(
            f"{name} may ignore num_items_in_batch, and what it is the mean over was not tried, because "
            f"{verdict.untried}: its {verdict.counter.how} are counted.",
            stacklevel=3,
        )
    elif verdict.untried and verdict.counter is None and not shifted:
        warnings.warn(
            f"{name} may ignore num_items_in_batch ({verdict.untried}): give backward the summed loss / window.items.",
            stacklevel=3,
        )
    if verdict.counter is not None:
        return verdict.counter
    found = counters(batch, names=(), shifted=shifted)
    if verdict.untried and not any(counter.key in ("labels", "shift_labels") for counter in found):
        raise ValueError(
            "windows() weighs micro-batches by their labels, and these batches have none: add a `labels` key."
        )
    return found[0]


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

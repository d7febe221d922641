"""The loss that a model returns in a hand-written loop: as the probe wants it, and recognised when it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hf_efficient.train.items import Batch, Counter
from hf_efficient.train.probe import TriedLoss
from hf_efficient.train.stock import agreement

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


def own_loss(model: nn.Module, accelerator: Accelerator) -> TriedLoss:
    """Return the loss of `model(**batch)` for `probe`; the model is the one without wrappers."""
    import torch
    from transformers.utils.generic import find_labels

    whole = {weight.dtype for weight in model.parameters()} == {torch.float32}
    precision: Any = nullcontext if whole else accelerator.autocast

    def loss_of(batch: Batch, items: torch.Tensor | None) -> torch.Tensor:
        with precision():
            loss = loss_in(model(**batch) if items is None else model(**batch, num_items_in_batch=items))
        if loss is None:
            raise ValueError("the model returns no loss")
        return loss.detach()

    inner = getattr(model, "get_base_model", lambda: model)()
    return TriedLoss(loss_of, model, names=find_labels(type(inner)), agree=agreement(accelerator))


class OwnLoss:
    """The losses that a model returned in one micro-batch, and whether it was given the number of items.

    With a counter, a forward without items gets one: its loss is then finite, and can weigh 0.
    """

    def __init__(self, modules: Iterable[nn.Module], counter: Counter | None = None) -> None:
        self.values: tuple[tuple[torch.Tensor, bool], ...] = ()
        # The wrappers too: hooks put on a module after it was compiled are not run.
        self._modules, self._counter = list({id(module): module for module in modules}.values()), counter
        self._handles: list[Any] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while the body runs; inside another such body this changes nothing."""
        if self._handles:
            yield
            return
        self._handles = [module.register_forward_hook(self._see, with_kwargs=True) for module in self._modules]
        if self._counter is not None:
            self._handles += [m.register_forward_pre_hook(self._with_an_item, with_kwargs=True) for m in self._modules]
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _with_an_item(self, module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # Not in the batch that the loop gets: a loss of its own would count the item.
        if self._counter is None or keywords.get(self._counter.key) is None:
            return arguments, keywords
        return arguments, dict(self._counter.with_an_item(keywords))

    def _see(self, module: nn.Module, arguments: Any, keywords: dict[str, Any], output: Any) -> None:
        loss = loss_in(output)
        if loss is not None:
            self.values = (*self.values, (loss.detach(), keywords.get("num_items_in_batch") is not None))

    def is_that(self, loss: torch.Tensor, *, given: bool) -> torch.Tensor | None:
        """Say whether `loss` is one of the model's own, by its bits; None if the model returned none.

        Those that were given the number of items count only if `given`.
        """
        own = [value for value, had in self.values if (given or not had) and value.shape == loss.shape]
        same = [loss.detach() == value for value in own]
        return sum(same[1:], same[0]) > 0 if same else None


def loss_in(output: Any) -> torch.Tensor | None:
    """Return the loss in what a model returned, None where there is none."""
    import torch

    if isinstance(output, (tuple, list)) and not isinstance(output, Mapping):
        loss = output[0] if output else None
    else:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

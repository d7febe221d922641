"""The loss that a model returns in a hand-written loop: as the probe wants it, and recognised when it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hf_efficient.train.items import Batch
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
    """The last loss that a model returned, and whether it was given the number of items."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.value: torch.Tensor | None = None
        self.given = False
        # The wrappers too: hooks put on a module after it was compiled are not run.
        self._modules = list({id(module): module for module in modules}.values())
        self._handles: list[Any] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while the body runs; inside another such body this changes nothing."""
        if self._handles:
            yield
            return
        self._handles = [module.register_forward_hook(self._see, with_kwargs=True) for module in self._modules]
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _see(self, module: nn.Module, arguments: Any, keywords: dict[str, Any], output: Any) -> None:
        loss = loss_in(output)
        self.value = None if loss is None else loss.detach()
        self.given = keywords.get("num_items_in_batch") is not None

    def is_that(self, loss: torch.Tensor) -> torch.Tensor | None:
        """Say whether `loss` is the model's own, by its bits; None if the model returned none."""
        if self.value is None or self.value.shape != loss.shape:
            return None
        return loss.detach() == self.value


def loss_in(output: Any) -> torch.Tensor | None:
    """Return the loss in what a model returned, None where there is none."""
    import torch

    if isinstance(output, (tuple, list)) and not isinstance(output, Mapping):
        loss = output[0] if output else None
    else:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

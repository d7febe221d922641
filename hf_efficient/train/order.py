"""The order of a run's data: what decides it, and how it is brought to the epoch in which a run is taken up."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler that orders the rows, below the batch samplers that accelerate puts around it."""
    sampler: Any = loader.batch_sampler
    while hasattr(sampler, "batch_sampler") or hasattr(sampler, "sampler"):
        sampler = sampler.batch_sampler if hasattr(sampler, "batch_sampler") else sampler.sampler
    return sampler


def repeat_orders(loader: DataLoader[Any], epochs: int) -> None:
    """Let a sampler whose next order depends on those before draw `epochs` of them again.

    Those of accelerate, which shuffle, are told their epoch instead.
    """
    sampler = sampler_of(loader)
    if getattr(sampler, "generator", None) is not None and not hasattr(sampler, "set_epoch"):
        for _ in range(epochs):
            list(islice(iter(sampler), 1))

"""Whether an estimate fits: on the card that is named, or which cards of the table would do."""

from __future__ import annotations

from dataclasses import replace

from hf_efficient.machine import Machine, cards
from hf_efficient.memory.results import CardFit, Estimate

CONTEXT_GIB = 0.75
"""What CUDA's context and kernels take before the first tensor: 0.4 to 1.3 GiB as published, by card and release."""
RESERVED = 1.05
"""What the caching allocator holds for each byte that is allocated, at the least in most published runs."""


def needed(estimate: Estimate) -> float:
    """Return the GiB that a card should have: the highest moment, what the allocator holds besides, and the context."""
    return max(estimate.allocated_gib, *estimate.moments.values()) * RESERVED + CONTEXT_GIB


def judged(estimate: Estimate, machine: Machine | None) -> Estimate:
    """Return the estimate with what fits."""
    if machine is not None and machine.memory_gib:
        margin = machine.memory_gib - needed(estimate)
        return replace(estimate, gpu=machine.gpu, capacity_gib=machine.memory_gib, margin_gib=margin, fits=margin >= 0)
    table = [CardFit(card.gpu, card.memory_gib >= needed(estimate)) for card in cards()]
    return replace(estimate, cards=tuple(table))

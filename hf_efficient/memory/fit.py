"""Whether an estimate fits: on the card that is named, or which cards of the table would do."""

from __future__ import annotations

from dataclasses import replace

from hf_efficient.machine import Machine, cards
from hf_efficient.memory.results import CardFit, Estimate
from hf_efficient.plan import Plan

CONTEXT_GIB = 0.75
"""What CUDA's context and kernels take before the first tensor: 0.4 to 1.3 GiB as published, by card and release."""
RESERVED = 1.05
"""What the caching allocator holds for each byte that is allocated, at the least in most published runs."""


def needed(estimate: Estimate) -> float:
    """Return the GiB that a card should have: the highest moment, what the allocator holds besides, and the context."""
    return max(estimate.allocated_gib, *estimate.moments.values()) * RESERVED + CONTEXT_GIB


def judged(estimate: Estimate, machine: Machine | None, plan: Plan) -> Estimate:
    """Return the estimate with what fits: on `machine`, or of the table those cards that can run `plan`."""
    if machine is not None and machine.memory_gib:
        margin = machine.memory_gib - needed(estimate)
        lacks = [f"{machine.gpu} lacks what the plan needs: {lack}" for lack in lacking(plan, machine)]
        said = (*estimate.assumptions, *lacks)
        return replace(
            estimate, gpu=machine.gpu, capacity_gib=machine.memory_gib, margin_gib=margin, fits=margin >= 0,
            assumptions=said,
        )  # fmt: skip
    table = [CardFit(card.gpu, card.memory_gib >= needed(estimate) and not lacking(plan, card)) for card in cards()]
    return replace(estimate, cards=tuple(table))


def lacking(plan: Plan, card: Machine) -> list[str]:
    """Return what of the plan a card cannot run, whatever is installed beside it."""
    needs = [(trick.name, need) for trick in plan.tricks for need in trick.needs if not need.package]
    return [f"{name} needs {lack}" for name, need in needs if (lack := need.unmet_on(card))]

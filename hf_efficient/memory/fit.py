"""Whether an estimate fits: on the card that is named, or which cards of the table would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hf_efficient.machine import Machine, cards
from hf_efficient.memory.context import DRIVER_GIB, context_gib, nccl_gib
from hf_efficient.memory.results import GIB, CardFit, Estimate
from hf_efficient.memory.speed import PCIE_GB_S, speed
from hf_efficient.plan import Plan

SPARE = 0.025
"""Share of a card that must stay free: in the middle of published runs nvidia-smi's figure is off by as much."""
GROWING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
RESTS = (
    "The speed rests on the card's ceilings, of which each kernel is taken to get the share that it gets in published "
    "runs; torch.compile and fused kernels count by published ranges, and data are there in time. How far off that is: "
    "docs/memory.md."
)


def beside(machine: Machine, gpus: int) -> Mapping[str, float]:
    """Return the GiB that a process takes of a card outside PyTorch's allocator, by what takes them."""
    taken = {"CUDA's context": context_gib(machine.capability)}
    if gpus > 1:
        taken["NCCL's buffers"] = nccl_gib(gpus, nvlink=machine.link_gb_s > PCIE_GB_S)
    return taken


def timed(estimate: Estimate, machine: Machine) -> Estimate:
    """Return the estimate with how long its step takes on a card; as it is where nothing is known of the card."""
    found = speed(estimate.demand, machine) if estimate.demand else None
    if found is None or estimate.demand is None:
        return estimate
    tokens = estimate.demand.tokens * estimate.demand.micro_batches
    parts = {name: value for name, value in found._asdict().items() if name not in ("step_s", "mfu")}
    return replace(
        estimate,
        step_s=found.step_s,
        tokens_per_s=tokens / found.step_s,
        mfu=found.mfu,
        seconds=parts,
        assumptions=(*estimate.assumptions, RESTS),
    )


def judged(estimate: Estimate, machine: Machine | None, plan: Plan) -> Estimate:
    """Return the estimate with what fits: on `machine`, or of the table those cards that can run `plan`."""
    if machine is not None and machine.memory_gib:
        lacks = [f"{machine.gpu} lacks what the plan needs: {lack}" for lack in lacking(plan, machine)]
        return timed(_eased(on_card(replace(estimate, assumptions=(*estimate.assumptions, *lacks)), machine)), machine)
    table = [CardFit(card.gpu, bool(on_card(estimate, card).fits) and not lacking(plan, card)) for card in cards()]
    return replace(estimate, cards=tuple(table))


def on_card(estimate: Estimate, machine: Machine) -> Estimate:
    """Return the estimate with what it takes of a card, whose allocator gives back what it caches when it is full."""
    outside = beside(machine, estimate.gpus)
    usable = _usable(machine.memory_gib, outside)
    wanted = estimate.held_gib
    reserved, fits, tight = wanted, wanted <= usable, False
    said: tuple[str, ...] = ()
    if not fits and estimate.reserve is not None and max(estimate.moments.values()) <= usable:
        replayed = estimate.reserve.on(int(usable * GIB))
        fits = tight = replayed.fits
        if fits:
            reserved, said = usable, (_retries(replayed.retries),)
    taken = reserved + sum(outside.values())
    said = (f"It fits where {100 * SPARE:g} % of the card stays free.", *said, *_linked(machine, estimate.gpus))
    return replace(
        estimate,
        reserved_gib=reserved,
        device_gib=min(taken + DRIVER_GIB, machine.memory_gib) if fits else taken + DRIVER_GIB,
        beside_gib=outside,
        gpu=machine.gpu,
        capacity_gib=machine.memory_gib,
        margin_gib=machine.memory_gib - taken,
        fits=fits,
        tight=tight,
        assumptions=(*estimate.assumptions, *said),
    )


def _usable(capacity: float, outside: Mapping[str, float]) -> float:
    """Return the GiB of a card that PyTorch's allocator may hold."""
    return (1 - SPARE) * capacity - sum(outside.values())


def _linked(machine: Machine, gpus: int) -> list[str]:
    """Return over what the GPUs are taken to exchange."""
    if gpus == 1 or not machine.link_gb_s:
        return []
    name = "NVLink or the like" if machine.link_gb_s > PCIE_GB_S else "PCIe"
    return [f"The GPUs exchange over {name}, {machine.link_gb_s:g} GB/s in each direction."]


def _eased(estimate: Estimate) -> Estimate:
    """Return the estimate with the allocator's own setting as a change, where that alone makes it fit."""
    if estimate.fits or estimate.reserve is None or estimate.reserve.expandable:
        return estimate
    usable = _usable(estimate.capacity_gib or 0.0, estimate.beside_gib)
    growing = estimate.reserve._replace(expandable=True)
    if max(estimate.moments.values()) > usable or not growing.on(int(usable * GIB)).fits:
        return estimate
    return replace(estimate, changes=(f"{GROWING} in the environment (costs nothing)", *estimate.changes))


def _retries(times: int) -> str:
    often = f"{times} times in every step" if times else "before the steps are all alike"
    return (
        f"Near the limit: the allocator gives back what it caches and asks the card again, {often}; each time waits "
        f"for the card and costs speed. {GROWING} in the environment caches less."
    )


def lacking(plan: Plan, card: Machine) -> list[str]:
    """Return what of the plan a card cannot run, whatever is installed beside it."""
    needs = [(trick.name, need) for trick in plan.tricks for need in trick.needs if not need.package]
    return [f"{name} needs {lack}" for name, need in needs if (lack := need.unmet_on(card))]

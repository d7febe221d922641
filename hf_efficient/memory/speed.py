"""How long a step takes on a card: its kernels against the card's ceilings, then the update and what is exchanged.

A kernel takes its operations at the card's rate for their dtype, and its bytes at the card's bandwidth, since it
computes on what it has read; Python launches it meanwhile, and where launching takes longer it is that. No ceiling is
ever reached: the shares of it that kernels get are EFFICIENCY, found on published speeds (`make accuracy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hf_efficient.machine import Machine
from hf_efficient.memory.demand import Demand
from hf_efficient.memory.traffic import host_update_s

ATTENTION = ("flash attention", "efficient attention")
PCIE_GB_S = 64.0
"""1e9 bytes/s per direction of the fastest PCIe in the table: a faster link is NVLink or the like."""


class Efficiency(NamedTuple):
    """Shares of a card's ceilings that a step gets, and what it waits for."""

    product: Mapping[str, float]
    """Family of cards -> share of the peak rate that matrix products get."""
    attention: Mapping[str, float]
    """Family of cards -> share of the peak rate that attention kernels get, as FlashAttention-2's."""
    bandwidth: float
    launch: float
    """Seconds of Python and of the driver for one kernel."""
    link: float
    """Of NVLink's rate."""
    pcie: float
    """Of PCIe's rate, where consumer cards send through host memory."""
    hidden: float
    """Share of an exchange that happens while the card computes."""
    compiled: float
    """Share that torch.compile leaves of the bytes moved outside of products, and of the kernels launched."""
    call: float
    """Seconds that a collective takes besides its bytes."""


EFFICIENCY = Efficiency(
    product={"volta": 0.68, "a100": 0.83, "ampere": 0.95, "hopper": 0.64},
    attention={"volta": 0.5, "a100": 0.61, "ampere": 0.96, "hopper": 0.36},
    bandwidth=0.69,
    launch=2.5e-05,
    link=0.27,
    pcie=0.093,
    hidden=0.52,
    compiled=0.86,
    call=0.00024,
)
"""As benchmarks/accuracy finds them on all published speeds together, to two digits."""


def family(capability: tuple[int, int]) -> str:
    """Return the family of a card: those of GeForce and their like reach more of the lower rate that they have."""
    if capability == (8, 0):
        return "a100"
    return {7: "volta", 8: "ampere", 12: "ampere"}.get(capability[0], "hopper")


class Speed(NamedTuple):
    """One update of the weights; seconds."""

    step_s: float
    products: float
    """Of matrix products, all micro-batches together."""
    attention: float
    moving: float
    """Of kernels that only move data."""
    waiting: float
    """For Python, where the kernels are too short to keep the card busy."""
    update: float
    exchange: float
    """With other GPUs, as far as nothing else happens meanwhile."""
    host: float
    """Moving to host memory and back, and the update there."""
    mfu: float
    """Share of the card's peak rate that the model's own operations get, without those that are repeated."""


def speed(demand: Demand, machine: Machine, efficiency: Efficiency = EFFICIENCY) -> Speed | None:
    """Return how long an update takes on a card; None where the card's rates are not known."""
    if "float32" not in machine.peak_tflops or not machine.bandwidth_gb_s:
        return None
    left = efficiency.compiled if demand.compiled else 1.0
    bandwidth = machine.bandwidth_gb_s * 1e9 * efficiency.bandwidth
    seconds, launches, model = _kernels(demand, machine, efficiency, bandwidth)
    seconds["moving"] *= left
    busy = sum(seconds.values())
    waiting = max(0.0, left * launches * efficiency.launch - busy)
    computing = demand.micro_batches * (busy + waiting)
    update = demand.update / bandwidth
    exchange = _waited(_exchange_s(demand, machine, efficiency), computing, efficiency)
    to_host = demand.traffic.host / (machine.host_link_gb_s * 1e9) if machine.host_link_gb_s else 0.0
    host = _waited(to_host, computing, efficiency) + host_update_s(demand.on_host)
    step_s = computing + update + exchange + host
    return Speed(
        step_s,
        **{kind: demand.micro_batches * value for kind, value in seconds.items()},
        waiting=demand.micro_batches * waiting,
        update=update,
        exchange=exchange,
        host=host,
        mfu=demand.micro_batches * model / step_s / (max(machine.peak_tflops.values()) * 1e12),
    )


def _kernels(
    demand: Demand, machine: Machine, efficiency: Efficiency, bandwidth: float
) -> tuple[dict[str, float], int, float]:
    """Return the seconds of each kind of kernel of a micro-batch, how many run, and the model's own operations."""
    kin = family(machine.capability)
    shares = {"attention": efficiency.attention[kin], "products": efficiency.product[kin]}
    seconds = {"products": 0.0, "attention": 0.0, "moving": 0.0}
    launches, model = 0, 0.0
    for kernel, times in demand.work.items():
        kind = "attention" if kernel.op in ATTENTION else "products" if kernel.flops else "moving"
        computing = kernel.flops / (_rate(kernel.dtype, demand, machine) * shares[kind]) if kernel.flops else 0.0
        seconds[kind] += times * (computing + kernel.moved / bandwidth)
        launches += times
        model += times * kernel.flops if kernel.phase != "recompute" else 0
    return seconds, launches, model


def _rate(dtype: str, demand: Demand, machine: Machine) -> float:
    """Return the card's operations per second for a dtype; what it has no rate for is computed in float32."""
    name = "tf32" if dtype == "float32" and demand.tf32 else dtype
    return (machine.peak_tflops.get(name) or machine.peak_tflops["float32"]) * 1e12


def _exchange_s(demand: Demand, machine: Machine, efficiency: Efficiency) -> float:
    """Return the seconds of what goes to other GPUs, were nothing else to happen meanwhile."""
    if not demand.traffic.link or not machine.link_gb_s:
        return 0.0
    share = efficiency.link if machine.link_gb_s > PCIE_GB_S else efficiency.pcie
    return demand.traffic.link / (machine.link_gb_s * 1e9 * share) + demand.traffic.calls * efficiency.call


def _waited(seconds: float, computing: float, efficiency: Efficiency) -> float:
    """Return the seconds that nothing hides: a share of them, or more where they are longer than all computing."""
    return max(seconds - computing, seconds * (1 - efficiency.hidden))

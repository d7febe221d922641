"""How long a step takes on a card: each kernel against the card's ceilings, then the update and what is exchanged.

A kernel takes as long as its operations at the card's rate for their dtype, or its bytes at the card's bandwidth,
whichever is longer; Python launches it meanwhile, and where launching takes longer it is that. No ceiling is ever
reached: the shares of it that kernels get are EFFICIENCY, found on published speeds (benchmarks/accuracy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hf_efficient.machine import Machine
from hf_efficient.memory.demand import Demand
from hf_efficient.memory.traffic import host_update_s
from hf_efficient.memory.work import Kernel

ATTENTION = ("flash attention", "efficient attention")


class Efficiency(NamedTuple):
    """Shares of a card's ceilings that a step gets, and what it waits for."""

    product: Mapping[int, float]
    """Major compute capability -> share of the peak rate that matrix products get; 0: of any other."""
    attention: float = 0.5
    bandwidth: float = 0.75
    launch: float = 6e-6
    """Seconds of Python and CUDA's driver for one kernel."""
    link: float = 0.7
    hidden: float = 0.7
    """Share of the exchange that happens while the card computes."""
    compiled: float = 0.6
    """Share of the bytes that a compiled model moves outside of products, and of the kernels that it launches."""


EFFICIENCY = Efficiency(product={0: 0.7, 7: 0.6, 8: 0.75, 9: 0.6})
CALL_S = 30e-6
"""Seconds that a collective takes besides its bytes."""


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
    if not machine.peak_tflops or not machine.bandwidth_gb_s:
        return None
    seconds = {"products": 0.0, "attention": 0.0, "moving": 0.0}
    model = launched = 0.0
    for kernel, times in demand.work.items():
        kind = "attention" if kernel.op in ATTENTION else "products" if kernel.flops else "moving"
        seconds[kind] += times * _kernel_s(kernel, kind, demand, machine, efficiency)
        launched += times * (efficiency.compiled if demand.compiled else 1.0)
        model += times * kernel.flops if kernel.phase != "recompute" else 0.0
    busy = sum(seconds.values())
    waiting = max(0.0, launched * efficiency.launch - busy)
    computing = demand.micro_batches * (busy + waiting)
    update = demand.update / (machine.bandwidth_gb_s * 1e9 * efficiency.bandwidth)
    exchange = _exposed(demand, machine, computing, efficiency)
    host = demand.traffic.host / (machine.host_link_gb_s * 1e9) if machine.host_link_gb_s else 0.0
    host += host_update_s(demand.on_host)
    step_s = computing + update + exchange + host
    peak = max(machine.peak_tflops.values()) * 1e12
    return Speed(
        step_s,
        **{kind: demand.micro_batches * value for kind, value in seconds.items()},
        waiting=demand.micro_batches * waiting,
        update=update,
        exchange=exchange,
        host=host,
        mfu=demand.micro_batches * model / step_s / peak,
    )


def _kernel_s(kernel: Kernel, kind: str, demand: Demand, machine: Machine, efficiency: Efficiency) -> float:
    moving = kernel.moved / (machine.bandwidth_gb_s * 1e9 * efficiency.bandwidth)
    if kind == "moving":
        return moving * (efficiency.compiled if demand.compiled else 1.0)
    major = machine.capability[0]
    share = efficiency.attention if kind == "attention" else efficiency.product.get(major, efficiency.product[0])
    return max(moving, kernel.flops / (_rate(kernel.dtype, demand, machine) * share))


def _rate(dtype: str, demand: Demand, machine: Machine) -> float:
    """Return the card's operations per second for a dtype; what it has no rate for is computed in float32."""
    name = "tf32" if dtype == "float32" and demand.tf32 else dtype
    return machine.peak_tflops.get(name, machine.peak_tflops["float32"]) * 1e12


def _exposed(demand: Demand, machine: Machine, computing: float, efficiency: Efficiency) -> float:
    """Return the seconds of the exchange that nothing hides: a share of it, or more where it takes longer than all."""
    if not demand.traffic.link or not machine.link_gb_s:
        return 0.0
    whole = demand.traffic.link / (machine.link_gb_s * 1e9 * efficiency.link) + demand.traffic.calls * CALL_S
    return max(whole - computing, whole * (1 - efficiency.hidden))

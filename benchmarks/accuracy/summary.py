"""Signed errors -> median, 90th percentile and worst of each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

LIMITS = {
    "hf-1gpu-allocated": (1.0, 3.0),
    "hf-fsdp-allocated": (5.0, None),
    "hf-fused-allocated": (8.0, None),
    "other-allocated": (8.0, None),
    "nvidia-smi": (5.0, None),
    "reserved": (10.0, None),
    "device": (10.0, None),
    "speed": (20.0, None),
}
"""Group -> percent: median absolute error, worst."""
RATES = {"full": 1.0, "ran": 0.95, "pairs": 0.9}
"""Count -> share of it that must be right: runs out of memory, runs that went through, pairs of plans in order."""


def error(published: float, traced: float) -> float:
    """Return the signed error in percent."""
    return 100 * (traced - published) / published


def of(errors: Sequence[float]) -> dict[str, float]:
    """Return median, 90th percentile and worst of the absolute errors, and the median of the signed ones."""
    sizes = sorted(abs(e) for e in errors)
    if not sizes:
        return {}
    ninth = sizes[min(len(sizes) - 1, math.ceil(0.9 * len(sizes)) - 1)]
    return {"median": median(sizes), "p90": ninth, "worst": sizes[-1], "signed_median": median(errors)}


def words(figures: dict[str, Any]) -> str:
    """Return the figures of a group in words."""
    return (
        f"median {figures['median']:.2f} %, 90th {figures['p90']:.2f} %, worst {figures['worst']:.2f} %, signed median "
        f"{figures['signed_median']:+.2f} %"
    )


def missed(group: str, figures: dict[str, Any]) -> list[str]:
    """Return what of a group's limits is not kept."""
    middle, worst = LIMITS.get(group, (None, None))
    said = []
    if "median" in figures and middle is not None and figures["median"] > middle:
        said.append(f"median {figures['median']:.1f} % above {middle:g} %")
    if "worst" in figures and worst is not None and figures["worst"] > worst:
        said.append(f"worst {figures['worst']:.1f} % above {worst:g} %")
    for name, least in RATES.items():
        if figures.get(name) and figures[f"{name}_right"] < least * figures[name]:
            said.append(f"{name}: {figures[f'{name}_right']} of {figures[name]} right, fewer than {least:.0%}")
    return said

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
}
"""Group -> percent: median absolute error, worst."""


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


def missed(group: str, figures: dict[str, Any]) -> list[str]:
    """Return what of a group's limits is not kept."""
    middle, worst = LIMITS.get(group, (None, None))
    said = []
    if "median" in figures and middle is not None and figures["median"] > middle:
        said.append(f"median {figures['median']:.1f} % above {middle:g} %")
    if "worst" in figures and worst is not None and figures["worst"] > worst:
        said.append(f"worst {figures['worst']:.1f} % above {worst:g} %")
    return said

"""Whether two trainings are the same: losses, norms, evaluation and saved weights, and a sentence where they differ."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launched import Launched

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bound:
    """How far two trainings may be apart: absolute in losses, relative in norms and in the weights' L2."""

    loss: float
    norm: float
    weights: float


FP32 = Bound(loss=2e-5, norm=2e-5, weights=1e-4)


@dataclass(frozen=True)
class Training:
    """What is compared of a training: a loss and a norm per update, evaluation before and after, saved weights."""

    losses: Sequence[float]
    norms: Sequence[float]
    evaluation: tuple[float, ...]
    weights: torch.Tensor


def training_of(run: Launched, saved: Path) -> Training:
    """Return the training of a launched recipe that saved its model to `saved`, loaded as users load it."""
    from trained import weights
    from transformers import AutoModelForCausalLM

    told = re.findall(r"evaluation loss\s+([\d.]+) -> ([\d.]+)", run.output)
    assert len(told) == 1, f"{len(told)} summaries:\n{run.output[-3000:]}"
    return Training(
        run.ranks[0]["losses"],
        run.ranks[0]["norms"],
        tuple(map(float, told[0])),
        weights(AutoModelForCausalLM.from_pretrained(saved)),
    )


def distances(ours: Training, reference: Training) -> Bound:
    """Return the largest distances of two trainings of as many updates."""
    losses = [abs(a - b) for a, b in zip(ours.losses, reference.losses, strict=True)]
    norms = [abs(a / b - 1) for a, b in zip(ours.norms, reference.norms, strict=True)]
    weights = (ours.weights - reference.weights).norm() / reference.weights.norm()
    return Bound(_largest(losses), _largest(norms), float(weights))


def difference(ours: Training, reference: Training, bound: Bound = FP32) -> str:
    """Return a sentence on what tells `ours` from `reference`, or nothing where they are within `bound`."""
    for name in ("losses", "norms", "weights"):
        mine, theirs = getattr(ours, name), getattr(reference, name)
        if len(mine) != len(theirs):
            return f"There are {len(mine)} {name} in place of {len(theirs)}."
    apart = distances(ours, reference)
    for name in ("loss", "norm", "weights"):
        distance, allowed = getattr(apart, name), getattr(bound, name)
        if not distance <= allowed:  # not a number is a difference
            return f"The trainings are {distance:.1e} apart in {name}, where {allowed:.1e} is allowed."
    shown = 0.001 + bound.loss  # the summary has three decimals
    if not all(math.isclose(a, b, abs_tol=shown) for a, b in zip(ours.evaluation, reference.evaluation, strict=True)):
        return f"The evaluation is {ours.evaluation} in place of {reference.evaluation}."
    return ""


def _largest(numbers: Sequence[float]) -> float:
    """Return the largest of `numbers`; `max` would pass over one that is not a number."""
    return next((number for number in numbers if math.isnan(number)), max(numbers, default=0.0))

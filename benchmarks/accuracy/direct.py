"""A model that is none of transformers' -> its peak, through the parts that `estimate` is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hf_efficient.memory import taken
from hf_efficient.memory.reading import Run
from hf_efficient.memory.results import GIB, PARTS
from hf_efficient.memory.shares import Shares, counted
from hf_efficient.memory.shares import whole as unsharded
from hf_efficient.memory.stacks import stacks
from hf_efficient.memory.step import Step
from hf_efficient.memory.timeline import moments, timeline
from hf_efficient.memory.whole import whole_step


def peak(
    model: nn.Module,
    inputs: Callable[[nn.Module], dict[str, Any]],
    run: Run,
    *,
    step: Step,
    shares: Shares | None = None,
    update: bool = True,
    late: bool = True,
) -> Any:
    """Return peak, moments and breakdown of one step, as an Estimate names them.

    `update` False: of its passes alone, before there is any state. `late` False: weights are updated one by one as soon
    as their gradient is there, so that nothing comes after the passes. Beside these, as a costing of the step reads
    them: `cut` (its segments), `ended` (the update), `shares`, `run`, and the numbers `params` and `trained`.
    """
    shares = shares or unsharded(model)
    step = replace(step, wrap=shares.wrap)
    depth = [stack.layers for stack in stacks(model)]
    params, trained = counted(model)
    cut = whole_step(model, inputs, step)
    ended = taken.updated(run, shares if update else replace(shares, optimizer=0))
    standing = taken.standing(shares, ended, step)
    happenings = [*taken.happenings(cut, depth), *(taken.ending(cut, ended, shares) if late else ())]
    made = timeline(happenings, standing, None)
    return SimpleNamespace(
        allocated_gib=made.live()[made.peak] / GIB,
        peak_at=made.label,
        moments=moments(made),
        breakdown={part: made.parts[part][made.peak] / GIB for part in PARTS},
        cut=cut,
        ended=ended,
        shares=shares,
        run=run,
        params=params,
        trained=trained,
    )


def tokens(row: Any) -> Callable[[nn.Module], dict[str, Any]]:
    """Return what makes a batch of token ids and labels."""

    def make(_: nn.Module) -> dict[str, Any]:
        return {name: torch.zeros((row.batch, row.seq), dtype=torch.long) for name in ("idx", "labels")}

    return make

"""A model that is none of transformers' -> its peak, through the parts that `estimate` is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rows import Row
from torch import nn

from hf_efficient.memory import taken
from hf_efficient.memory.estimate import workspaces
from hf_efficient.memory.reading import Run
from hf_efficient.memory.results import GIB, PARTS, Batch, Estimate
from hf_efficient.memory.shares import Shares, counted
from hf_efficient.memory.shares import whole as unsharded
from hf_efficient.memory.step import Step
from hf_efficient.memory.timeline import moments
from hf_efficient.memory.whole import whole_step


def peak(
    row: Row,
    model: nn.Module,
    run: Run,
    *,
    step: Step,
    shares: Shares | None = None,
    inputs: Callable[[nn.Module], dict[str, Any]] | None = None,
    update: bool = True,
) -> Estimate:
    """Return the estimate of one step of a row's own model; without `inputs` of tokens.

    `update` False: of its passes alone, before there is any state.
    """
    shares = shares or unsharded(model)
    shares = shares if update else replace(shares, optimizer=0)
    batch = Batch(size=row.batch, seq_len=row.seq or None)
    step = replace(step, wrap=shares.wrap, workspaces=workspaces(None))
    params, trained = counted(model)
    facts = taken.facts_of(model, run, gpus=row.ranks, tokens=row.batch * (row.seq or 1))
    cut = whole_step(model, inputs or tokens(row), step)
    took = taken.summed(cut, run, shares, how=step, facts=facts)
    made = took.timeline
    return Estimate(
        model=type(model).__name__,
        plan="",
        batch=batch,
        params=params,
        trainable_params=trained,
        allocated_gib=made.live()[made.peak] / GIB,
        reserved_gib=took.reserve.on().reserved / GIB,
        gpus=row.ranks,
        breakdown={part: made.parts[part][made.peak] / GIB for part in PARTS},
        peak_at=made.label,
        moments=moments(made),
        timeline=made,
        reserve=took.reserve,
        demand=took.demand,
    )


def tokens(row: Row) -> Callable[[nn.Module], dict[str, Any]]:
    """Return what makes a batch of token ids and labels."""

    def make(_: nn.Module) -> dict[str, Any]:
        return {name: torch.zeros((row.batch, row.seq), dtype=torch.long) for name in ("idx", "labels")}

    return make

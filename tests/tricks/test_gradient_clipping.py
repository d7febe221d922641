"""The gradient that an update uses is no longer than the limit, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from doors import DOORS, load, train
from torch import nn

from hf_efficient import clip, make_plan

VARIANTS = ["gradient_clipping(0)", "gradient_clipping(0.1)"]


def explosive(tiny: Path) -> nn.Module:
    """The tiny model with a head of a thousandfold weights, and so a gradient of thousands."""
    model = load(tiny)
    model.lm_head.weight.data *= 1e3
    return model


@DOORS
@pytest.mark.parametrize("limit", [1.0, 0.25])
def test_norm_is_cut_to_the_limit(door: str, limit: float, tiny: Path, rows: list[Any]) -> None:
    """At each update a huge gradient has the norm of the limit, neither more nor less."""
    run = train(door, make_plan(f"gradient_clipping({limit})"), explosive(tiny), rows)
    assert run.norms == pytest.approx([limit, limit], rel=1e-4)


@DOORS
def test_zero_clips_nothing(door: str, tiny: Path, rows: list[Any]) -> None:
    """gradient_clipping(0) leaves a huge gradient as it is."""
    assert min(train(door, make_plan("gradient_clipping(0)"), explosive(tiny), rows).norms) > 100


@DOORS
def test_direction_is_kept(door: str, tiny: Path, rows: list[Any]) -> None:
    """The clipped gradient is the whole one divided by its norm, accumulated over two micro-batches."""
    names = ("gradient_accumulation(2)", "batch_size(4)")
    whole, cut = (
        train(door, make_plan(*names, f"gradient_clipping({limit})"), explosive(tiny), rows, updates=1).gradients[0]
        for limit in (0, 1)
    )
    assert (whole / whole.norm() - cut).norm() < 1e-4


def test_silence_differs_by_door(tiny: Path, rows: list[Any]) -> None:
    """Unless it is named, Trainer clips at 1 and a hand-written loop does not clip."""
    by_trainer, by_loop = (train(door, make_plan(), explosive(tiny), rows).norms for door in ("trainer", "loop"))
    assert max(by_trainer) == pytest.approx(1, rel=1e-4)
    assert min(by_loop) > 100


def test_clip_returns_the_norm_before() -> None:
    """clip gives the norm that the gradient had, and None in a plan that clips nothing."""
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(2, 2, bias=False))
    (1e3 * model.weight).sum().backward()
    assert clip(make_plan("gradient_clipping(0)"), accelerator, model) is None
    assert clip(make_plan("gradient_clipping"), accelerator, model).item() == pytest.approx(2e3)
    assert model.weight.grad.norm().item() == pytest.approx(1, rel=1e-4)

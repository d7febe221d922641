"""AdamW is torch's fused one, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, groups, load, train

from hf_efficient import make_plan


@DOORS
def test_optimizer_is_fused(door: str, tiny: Path, rows: list[Any]) -> None:
    """Every group asks for the fused kernel, and each parameter has two moments of its own shape and one count."""
    run = train(door, make_plan("adamw_fused"), load(tiny), rows)
    assert type(run.optimizer) is torch.optim.AdamW
    assert [group["fused"] for group in run.optimizer.param_groups] == [True, True]
    for parameter in run.model.parameters():
        state = run.optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert state["step"] == 2


@pytest.mark.parametrize("names", [("adamw_fused",), ()], ids=["named", "silent"])
def test_both_doors_build_the_same_optimizer(names: tuple[str, ...], tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors, also in a plan that names no optimizer; norms do not decay."""
    by_trainer, by_loop = (train(door, make_plan(*names), load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    decayed, others = by_loop.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(parameter.ndim == 1 for parameter in others["params"])


def test_both_doors_train_alike(tiny: Path, rows: list[Any]) -> None:
    """With equal clipping the weights after three updates are equal to the last bit over the doors."""
    plan = make_plan("adamw_fused", "gradient_clipping")
    by_trainer, by_loop = (train(door, plan, load(tiny), rows, updates=3).model for door in ("trainer", "loop"))
    for one, other in zip(by_trainer.parameters(), by_loop.parameters(), strict=True):
        assert torch.equal(one, other)

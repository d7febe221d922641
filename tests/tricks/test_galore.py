"""GaLore keeps moments of the main directions in the blocks' linear layers, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doors import DOORS, block_bytes, groups, load, train
from galore_torch import GaLoreAdamW

from hf_efficient import Machine, make_plan

VARIANTS = ["galore(4)"]


@DOORS
def test_moments_have_rank_r(door: str, tiny: Path, rows: list[Any]) -> None:
    """A linear layer of a block has moments of its larger side times four; all else has whole ones."""
    run = train(door, make_plan("galore(4)"), load(tiny), rows)
    assert type(run.optimizer) is GaLoreAdamW
    for name, parameter in run.model.named_parameters():
        state, shape = run.optimizer.state[parameter], parameter.shape
        if "proj" in name:
            shape = (shape[0], 4) if shape[0] >= shape[1] else (4, shape[1])
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == shape, name
        assert state["exp_avg"].count_nonzero() > 0


def test_state_is_smaller(tiny: Path, rows: list[Any]) -> None:
    """At rank 4 of 64 the blocks' linear layers have less than a quarter of AdamW's bytes, projections included."""
    runs = [train("loop", make_plan(*names), load(tiny), rows) for names in (["galore(4)"], [])]
    ours, adamw = map(block_bytes, runs)
    assert 0 < ours < adamw / 4


def test_both_doors_build_the_same_optimizer(tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors, and the arguments arrive."""
    plan = make_plan("galore(4, scale=0.5, update_proj_gap=50)")
    by_trainer, by_loop = (train(door, plan, load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    _, low = by_loop.optimizer.param_groups
    assert (low["rank"], low["scale"], low["update_proj_gap"], len(low["params"])) == (4, 0.5, 50, 14)


def test_missing_package_is_named() -> None:
    """Without galore-torch the plan says how to install it."""
    [sentence] = make_plan("galore").unmet(Machine())
    assert sentence.endswith("pip install 'hf-efficient[optimizers]'`.")


@pytest.mark.parametrize("spelling", ["galore(0)", "galore(update_proj_gap=0)"])
def test_nonsense_is_refused(spelling: str) -> None:
    """A rank or a gap of nothing is refused by name."""
    with pytest.raises(ValueError, match="at least 1"):
        make_plan(spelling)

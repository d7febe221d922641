"""AdamW keeps its moments in 8 bits, but for embeddings and small tensors, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, groups, load, train

from hf_efficient import Machine, make_plan

bitsandbytes = pytest.importorskip("bitsandbytes")
BLOCK = 256


@pytest.fixture(autouse=True)
def _no_override_of_an_earlier_run() -> None:
    """Forget which tensors earlier optimizers of this process kept in 32 bits: bitsandbytes keeps them by position."""
    bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()


@DOORS
def test_moments_have_8_bits(door: str, tiny: Path, rows: list[Any]) -> None:
    """Both moments of a tensor of 4,096 elements are bytes with a scale per block; embeddings and norms stay fp32."""
    run = train(door, make_plan("adamw_8bit"), load(tiny), rows)
    for name, parameter in run.model.named_parameters():
        state = run.optimizer.state[parameter]
        small = parameter.numel() < 4096 or "embed" in name
        for moment, scale in (("state1", "absmax1"), ("state2", "absmax2")):
            assert state[moment].dtype == (torch.float32 if small else torch.uint8), name
            assert state[moment].shape == parameter.shape
            assert small or state[scale].numel() == parameter.numel() // BLOCK
        assert state["state1"].count_nonzero() > 0


def test_both_doors_build_the_same_optimizer(tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors, and the class is bitsandbytes' AdamW."""
    by_trainer, by_loop = (train(door, make_plan("adamw_8bit"), load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    assert type(by_loop.optimizer) is bitsandbytes.optim.AdamW
    assert by_loop.optimizer.args.optim_bits == by_trainer.optimizer.args.optim_bits == 8


def test_missing_bitsandbytes_is_named() -> None:
    """On a machine without bitsandbytes the plan's need says how to install it."""
    bare = replace(Machine.named("A10"), packages={})
    assert make_plan("adamw_8bit").unmet(bare) == [
        "adamw_8bit needs the package bitsandbytes, which is not installed. "
        "Run `pip install 'hf-efficient[bitsandbytes]'`."
    ]

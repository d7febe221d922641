"""Lion keeps one momentum in 8 bits, but for embeddings and small tensors, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, groups, load, state_bytes, train

from hf_efficient import Machine, make_plan
from hf_efficient.tricks import lion_8bit

bitsandbytes = pytest.importorskip("bitsandbytes")
VARIANTS = ["lion_8bit(paged=True)"]


@DOORS
def test_one_momentum_has_8_bits(door: str, tiny: Path, rows: list[Any]) -> None:
    """A tensor of 4,096 elements has one momentum of bytes and no second one; embeddings and norms stay fp32."""
    run = train(door, make_plan("lion_8bit"), load(tiny), rows)
    for name, parameter in run.model.named_parameters():
        state = run.optimizer.state[parameter]
        small = parameter.numel() < 4096 or "embed" in name
        assert state["state1"].dtype == (torch.float32 if small else torch.uint8), name
        assert state["state1"].shape == parameter.shape
        assert state["state1"].count_nonzero() > 0
        assert "state2" not in state


@DOORS
def test_a_step_is_a_sign(door: str, tiny: Path, rows: list[Any]) -> None:
    """One update moves each weight of a norm, which does not decay, by the learning rate, neither more nor less."""
    before = [parameter.detach().clone() for parameter in load(tiny).parameters()]
    run = train(door, make_plan("lion_8bit"), load(tiny), rows, updates=1)
    norms = [(old, new) for old, new in zip(before, run.model.parameters(), strict=True) if new.ndim == 1]
    for old, new in norms:
        torch.testing.assert_close((new - old).abs(), torch.full_like(old, 1e-3), rtol=1e-3, atol=0)


def test_state_is_smaller(tiny: Path, rows: list[Any]) -> None:
    """The whole state has less than a quarter of AdamW's bytes, embeddings in 32 bits and scales included."""
    ours, adamw = (state_bytes(train("loop", make_plan(*names), load(tiny), rows)) for names in (["lion_8bit"], []))
    assert ours < adamw / 4


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("paged", [False, True])
def test_both_doors_build_the_same_optimizer(paged: bool, tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors; the betas are Lion's own, and paging is on where asked."""
    plan = make_plan(lion_8bit(paged=paged))
    by_trainer, by_loop = (train(door, plan, load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    assert type(by_loop.optimizer) is bitsandbytes.optim.Lion
    assert by_loop.optimizer.defaults["betas"] == (0.9, 0.99)
    assert by_loop.optimizer.is_paged == by_trainer.optimizer.is_paged == paged


def test_missing_bitsandbytes_is_named() -> None:
    """On a machine without bitsandbytes the plan's need says how to install it."""
    bare = replace(Machine.named("A10"), packages={})
    assert make_plan("lion_8bit").unmet(bare) == [
        "lion_8bit needs the package bitsandbytes, which is not installed. "
        "Run `pip install 'hf-efficient[bitsandbytes]'`."
    ]

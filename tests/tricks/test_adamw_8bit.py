"""AdamW keeps its moments in 8 bits, but for embeddings and small tensors, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, ONLY_CPU, groups, load, state_bytes, train

from hf_efficient import Machine, make_plan
from hf_efficient.tricks import adamw_8bit

bitsandbytes = pytest.importorskip("bitsandbytes")
BLOCK = 256
VARIANTS = ["adamw_8bit(paged=True)"]


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


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("paged", [False, True])
def test_both_doors_build_the_same_optimizer(paged: bool, tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors, and the class is bitsandbytes' AdamW, paged where asked."""
    plan = make_plan(adamw_8bit(paged=paged))
    by_trainer, by_loop = (train(door, plan, load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    assert type(by_loop.optimizer) is bitsandbytes.optim.AdamW
    assert by_loop.optimizer.args.optim_bits == by_trainer.optimizer.args.optim_bits == 8
    assert by_loop.optimizer.is_paged == by_trainer.optimizer.is_paged == paged


def test_state_is_smaller(tiny: Path, rows: list[Any]) -> None:
    """The whole state has less than half of AdamW's bytes, embeddings in 32 bits and scales included."""
    ours, adamw = (state_bytes(train("loop", make_plan(*names), load(tiny), rows)) for names in (["adamw_8bit"], []))
    assert ours < adamw / 2


@ONLY_CPU
@DOORS
def test_a_cpu_has_nothing_to_page(door: str, tiny: Path, rows: list[Any]) -> None:
    """Without an accelerator bitsandbytes says that it does not page, and trains."""
    with pytest.warns(UserWarning, match="Paged optimizers are not supported on CPU"):
        train(door, make_plan("adamw_8bit(paged=True)"), load(tiny), rows)


def test_missing_bitsandbytes_is_named() -> None:
    """On a machine without bitsandbytes the plan's need says how to install it."""
    bare = replace(Machine.named("A10"), packages={})
    assert make_plan("adamw_8bit").unmet(bare) == [
        "adamw_8bit needs the package bitsandbytes, which is not installed. "
        "Run `pip install 'hf-efficient[bitsandbytes]'`."
    ]

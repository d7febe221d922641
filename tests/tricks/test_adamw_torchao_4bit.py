"""torchao's AdamW keeps its moments in 4 bits, but for small tensors, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, Run, groups, load, state_bytes, train

from hf_efficient import Machine, make_plan
from hf_efficient.emit.loop import make_optimizer

torchao = pytest.importorskip("torchao.optim")
SLOW = ["adamw_torchao_4bit"]
BLOCK = 256


@pytest.fixture(scope="module")
def runs(tiny: Path, rows: list[Any]) -> dict[str, Run]:
    """Two updates through each door; the step is compiled once for both."""
    return {door: train(door, make_plan("adamw_torchao_4bit"), load(tiny), rows) for door in ("trainer", "loop")}


@pytest.mark.launch
@DOORS
def test_moments_have_4_bits(door: str, runs: dict[str, Run]) -> None:
    """Both moments of a tensor from 4,096 elements on are 4-bit codes with a scale per block, embeddings too."""
    run = runs[door]
    for name, parameter in run.model.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            state = run.optimizer.state[parameter][moment]
            assert state.shape == parameter.shape
            if parameter.numel() < 4096:
                assert type(state) is torch.Tensor, name
            else:
                assert state.codes.dtype == torch.uint8
                assert state.codes.numel() == parameter.numel() // 2, name
                assert state.scale.numel() == parameter.numel() // BLOCK
                assert state.dequantize().count_nonzero() > 0


@pytest.mark.launch
def test_state_is_smaller(tiny: Path, rows: list[Any], runs: dict[str, Run]) -> None:
    """The whole state has less than a fifth of AdamW's bytes, scales and tables included."""
    adamw = state_bytes(train("loop", make_plan(), load(tiny), rows))
    assert state_bytes(runs["loop"]) < adamw / 5
    assert state_bytes(runs["loop"]) == state_bytes(runs["trainer"])


@pytest.mark.launch
def test_both_doors_build_the_same_optimizer(runs: dict[str, Run]) -> None:
    """Class, groups, defaults and block size agree over the doors."""
    by_trainer, by_loop = runs["trainer"], runs["loop"]
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    assert by_trainer.optimizer.block_size == by_loop.optimizer.block_size == BLOCK


def test_the_class_is_torchaos(tiny: Path) -> None:
    """A hand-written loop gets torchao's class by the trick's name, before anything is compiled."""
    assert type(make_optimizer(make_plan("adamw_torchao_4bit"), load(tiny))) is torchao.AdamW4bit


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (
            replace(Machine.named("A10"), packages={}),
            "the package torchao, which is not installed. Run `pip install 'hf-efficient[optimizers]'`.",
        ),
        (
            replace(Machine.named("A10"), packages={"torchao": "0.18.0"}, gpu="P100", capability=(6, 0)),
            "a GPU of compute capability 7.0, and P100 has 6.0. Take adamw_8bit: torchao compiles its step, and Triton "
            "supports Volta and newer GPUs only.",
        ),
    ],
    ids=["package", "gpu"],
)
def test_what_is_missing_is_named(machine: Machine, sentence: str) -> None:
    """The plan's needs name the package and the oldest GPU, each with what to do instead."""
    assert make_plan("adamw_torchao_4bit").unmet(machine) == [f"adamw_torchao_4bit needs {sentence}"]

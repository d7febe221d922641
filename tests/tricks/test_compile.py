"""The model runs compiled, through both doors; backend aot_eager, since inductor takes a quarter of a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DynamoBackend
from doors import DOORS, REFUSE, load, train
from torch._dynamo import OptimizedModule
from torch._dynamo.utils import counters

from hf_efficient import Machine, make_accelerator, make_plan, training_arguments

VARIANTS = [
    "compile('aot_eager')",
    "compile('aot_eager', 'reduce-overhead')",
    "compile('aot_eager', regional=True)",
]
SLOW = ["compile"]
NOT_FAST = [
    "compile('aot_eager')",
    "compile('aot_eager', 'reduce-overhead')",
    "compile('aot_eager', regional=True)",
]
REGIONAL = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def _as_in_another_process() -> None:
    """Forget accelerate's state, which a loop's second plan would otherwise be refused for."""
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.launch
@DOORS
def test_compiled_graph_runs(door: str, tiny: Path, rows: list[Any]) -> None:
    """The prepared model is an OptimizedModule around yours, whose graph gives the gradients of an uncompiled run."""
    run = train(door, make_plan("compile(backend='aot_eager')"), load(tiny), rows)
    assert isinstance(run.trained, OptimizedModule)
    assert run.trained._orig_mod is run.model
    assert counters["stats"]["unique_graphs"] >= 1
    assert counters["aot_autograd"]["ok"] >= 1
    _as_in_another_process()
    eager = train(door, make_plan(), load(tiny), rows).gradients
    for one, other in zip(eager, run.gradients, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


@pytest.mark.launch
@DOORS
def test_repeated_layers_are_compiled(door: str, tiny: Path, rows: list[Any]) -> None:
    """Regional compilation leaves the model as it is and compiles each of its layers, for the same gradients."""
    run = train(door, make_plan("compile(backend='aot_eager', regional=True)"), load(tiny), rows)
    assert not isinstance(run.trained, OptimizedModule)
    assert {type(layer) for layer in run.trained.model.layers} == {OptimizedModule}
    assert counters["aot_autograd"]["ok"] >= 1
    _as_in_another_process()
    eager = train(door, make_plan(), load(tiny), rows).gradients
    for one, other in zip(eager, run.gradients, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


@DOORS
def test_regions_end_with_their_plan(door: str) -> None:
    """The variable that asks for regions is there for one plan only, and the next compiles the whole model."""
    for name, there in {"compile('eager', regional=True)": "true", "compile('eager')": None}.items():
        _as_in_another_process()
        REFUSE[door](make_plan(name))
        assert os.environ.get(REGIONAL) == there


def test_regions_reach_the_launch_file() -> None:
    """The launch YAML asks for regions as accelerate's own does."""
    config = make_plan("compile('aot_eager', regional=True)")["launch"]["dynamo_config"]
    assert config == {"dynamo_backend": "aot_eager", "dynamo_use_regional_compilation": True}
    assert "dynamo_use_regional_compilation" not in make_plan("compile")["launch"]["dynamo_config"]


@DOORS
def test_nothing_is_compiled_unasked(door: str, tiny: Path, rows: list[Any]) -> None:
    """Without the trick the trained model is yours, and no graph is made."""
    run = train(door, make_plan("adamw_fused"), load(tiny), rows)
    assert run.trained is run.model
    assert not counters["stats"]


def test_default_is_inductor(tmp_path: Path) -> None:
    """compile means inductor in its default mode, and a mode that you name arrives, through both doors."""
    for name, mode in {"compile": "default", "compile(mode='max-autotune')": "max-autotune"}.items():
        plan = make_plan(name)
        args = training_arguments(plan, output_dir=tmp_path)
        assert (args.torch_compile, args.torch_compile_backend) == (True, "inductor")
        assert (args.torch_compile_mode or "default") == mode
        plugin = make_accelerator(plan).state.dynamo_plugin
        assert (plugin.backend, plugin.mode) == (DynamoBackend.INDUCTOR, mode)


def test_compile_needs_volta_or_a_cpu() -> None:
    """Every card of the table and a CPU will do; a Pascal card is told to leave it out."""
    plan = make_plan("compile")
    assert plan.unmet(Machine.named("V100-16GB")) == plan.unmet(Machine()) == []
    [sentence] = plan.unmet(Machine(gpu="P100", accelerator="cuda", capability=(6, 0), gpus=1))
    assert sentence.endswith("Leave compile out: Triton supports Volta and newer GPUs only.")

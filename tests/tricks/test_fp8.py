"""The inner layers multiply in 8-bit floats, through both doors; torch computes them on a CPU too, only slowly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from doors import DOORS, REFUSE, load, train
from torch import nn
from torchao.float8.float8_linear import Float8Linear

from hf_efficient import Machine, make_accelerator, make_plan, training_arguments
from hf_efficient.emit.loop import settle_loop
from hf_efficient.emit.targets import Options, emit
from hf_efficient.emit.trainer import settle
from hf_efficient.plan import Conflict

PRECISION = "ACCELERATE_MIXED_PRECISION"


def products(door: str, name: str, tiny: Path, rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """Return the dtypes of what torch's scaled matmul is given in one update."""
    seen, multiply = set(), torch._scaled_mm

    def watch(one: torch.Tensor, other: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        seen.update({one.dtype, other.dtype})
        return multiply(one, other, *args, **keywords)

    monkeypatch.setattr(torch, "_scaled_mm", watch)
    train(door, make_plan(name), load(tiny), rows, updates=1)
    return seen


@DOORS
def test_inner_layers_are_exchanged(door: str, tiny: Path, rows: list[Any]) -> None:
    """Every Linear but the first and the last is a Float8Linear over float32 weights, and the weights learn."""
    model = load(tiny)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    train(door, make_plan("fp8"), model, rows)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [isinstance(layer, Float8Linear) for layer in linears] == [False, *[True] * (len(linears) - 2), False]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # With accelerate's defaults the optimizer would hold the weights of before the exchange.
    assert not any(torch.equal(before[name], weight) for name, weight in model.named_parameters())


@DOORS
def test_matmuls_run_in_8_bits(door: str, tiny: Path, rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The products are of e4m3 numbers forward and e5m2 gradients backward, and of none without the trick."""
    assert products(door, "fp8", tiny, rows, monkeypatch) == {torch.float8_e4m3fn, torch.float8_e5m2}


@DOORS
def test_without_it_nothing_is_exchanged(door: str, tiny: Path, rows: list[Any]) -> None:
    """A plan after fp8's has plain layers again: the variables end with their plan."""
    REFUSE[door](make_plan("fp8"))
    assert os.environ[PRECISION] == "fp8"
    plan = make_plan("adamw_fused")
    assert (settle(plan) if door == "trainer" else settle_loop(plan))["env"] == {}
    model = load(tiny)
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate's own memory of the first Accelerator
    train(door, plan, model, rows, updates=1)
    assert PRECISION not in os.environ
    assert not any(isinstance(module, Float8Linear) for module in model.modules())


def test_your_other_precision_is_refused_or_replaces_it(tmp_path: Path) -> None:
    """Trainer with bf16 beside it would break and is refused; for an Accelerator your precision replaces the trick."""
    with pytest.raises(Conflict, match="fp8 needs bf16=False, since Accelerate would convert"):
        training_arguments(make_plan("fp8"), output_dir=tmp_path, bf16=True)
    with pytest.raises(Conflict, match="Write fp8 in the plan"):
        make_accelerator(make_plan("safe"), mixed_precision="fp8")
    with pytest.raises(Conflict, match="both of the family precision"):
        make_plan("fp8", "bf16")
    assert make_accelerator(make_plan("fp8"), mixed_precision="bf16").fp8_backend == "NO"


@pytest.mark.parametrize("settled", [settle, settle_loop])
def test_launcher_and_plan_agree_or_conflict(settled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's fp8 needs a plan with fp8; bf16 of either beside fp8 of the other is a conflict."""
    monkeypatch.setenv(PRECISION, "fp8")
    settled(make_plan("fp8"))
    with pytest.raises(Conflict, match=r"The launcher asks for fp8 and the plan does not: .* Add fp8 to the plan"):
        settled(make_plan("safe"))
    with pytest.raises(Conflict, match="The launcher asks for fp8, bf16 for bf16"):
        settled(make_plan("bf16"))
    monkeypatch.setenv(PRECISION, "bf16")
    with pytest.raises(Conflict, match="The launcher asks for bf16, fp8 for fp8"):
        settled(make_plan("fp8"))


def test_switching_bf16_off_is_not_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bf16=False, fp16=False` needs no GPU that knows 8-bit floats."""
    monkeypatch.setattr("hf_efficient.emit.trainer.training_machine", lambda: Machine.named("T4"))
    settle(make_plan("safe"), yours={"bf16": False, "fp16": False})


def test_fp8_needs_ada_or_a_cpu() -> None:
    """An A100 is sent to bf16, a CPU is told that it gains nothing, and an H100 has what fp8 needs."""
    plan, packages = make_plan("fp8"), {"torchao": "0.18"}
    ampere, hopper = (Machine(gpu=gpu, accelerator="cuda", capability=kind, gpus=1, packages=packages)
                      for gpu, kind in {"A100": (8, 0), "H100": (9, 0)}.items())  # fmt: skip
    [sentence] = plan.unmet(ampere)
    assert sentence.startswith("fp8 needs a GPU of compute capability 8.9, and A100 has 8.0. Use bf16")
    assert plan.unmet(hopper) == plan.unmet(Machine(packages=packages)) == []
    assert plan.advice(hopper) == []
    assert plan.advice(Machine()) == ["fp8: a CPU has no 8-bit matmuls and is slower with it; take bf16 here."]


def test_files_and_lines_say_it() -> None:
    """The launch YAML carries the precision that no field has, and the lines for Trainer the variables."""
    plan = make_plan("fp8")
    yaml = emit(plan, "accelerate")
    assert "mixed_precision: fp8" in yaml
    assert "# Accumulation and clipping are not here" in yaml
    assert "# Precision, accumulation and clipping are not here" in emit(make_plan("bf16"), "accelerate")
    for door in ("trainer", "sft", "accelerate"):
        assert "os.environ['ACCELERATE_MIXED_PRECISION'] = 'fp8'  # fp8" in emit(plan, "python", Options(door=door))


def test_the_launch_file_does_not_bring_the_trap_back() -> None:
    """The launch YAML and from_pretrained are told what the variables say: no FSDP gathering, float32 weights."""
    plan = make_plan("fp8")
    assert plan["launch"]["fp8_config"]["enable_fsdp_float8_all_gather"] is False
    assert plan["launch"]["mixed_precision"] == "fp8"
    assert plan["model"] == {"dtype": "float32"}

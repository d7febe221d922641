"""The matmuls run in bfloat16 over float32 weights, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from doors import DOORS, learning, load, train

from hf_efficient import Machine, make_plan


@DOORS
def test_matmuls_run_in_bfloat16(door: str, tiny: Path, rows: list[Any]) -> None:
    """Every Linear gives bfloat16, while weights, gradients and optimizer state are float32."""
    model, outputs = load(tiny), set()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(learning(lambda module, args, output: outputs.add(output.dtype)))
    run = train(door, make_plan("bf16"), model, rows)
    assert outputs == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    state = [value for state in run.optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in state} == {torch.float32}


@DOORS
def test_bf16_checkpoint_trains_with_float32_weights(door: str, tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """A checkpoint stored in bfloat16 trains in float32, so that an update below bfloat16's rounding is kept."""
    load(tiny).bfloat16().save_pretrained(tmp_path)
    assert load(tmp_path).dtype == torch.bfloat16
    plan = make_plan("bf16")
    model = load(tmp_path, plan)
    train(door, plan, model, rows)
    weight = model.lm_head.weight
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())


def test_bf16_needs_ampere_or_a_cpu() -> None:
    """A T4 is sent to fp16, an A100 and a machine without any GPU have what bf16 needs."""
    plan = make_plan("bf16")
    [sentence] = plan.unmet(Machine.named("T4"))
    assert sentence.startswith("bf16 needs a GPU of compute capability 8.0, and T4 has 7.5. Use fp16")
    assert plan.unmet(Machine.named("A100-80GB")) == plan.unmet(Machine()) == []

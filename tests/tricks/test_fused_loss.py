"""The loss without logits, run by Triton's interpreter, since Liger's kernels are for GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import ONLY_CPU, REFUSE, learning, load, train
from transformers import LlamaForCausalLM
from trl import SFTConfig

import hf_efficient as hf
from hf_efficient.emit import loop, trainer

VARIANTS = ["fused_loss(layers=True)"]
EPS = torch.finfo(torch.float32).eps


@ONLY_CPU
@pytest.mark.parametrize("refused", [*REFUSE.values(), lambda plan: hf.prepare_model(plan, torch.nn.Linear(1, 1))])
def test_a_cpu_is_refused_before_any_class_is_patched(refused: Any, tiny: Path, rows: list[Any]) -> None:
    """On a CPU every door stops with one sentence, and later models of the class train as before."""
    forward = LlamaForCausalLM.forward
    with pytest.raises(ValueError, match="fused_loss needs an accelerator, and this machine has none"):
        refused(hf.make_plan("fused_loss"))
    assert LlamaForCausalLM.forward is forward
    assert train("loop", hf.make_plan(), load(tiny), rows).norms


@ONLY_CPU
def test_your_own_liger_is_refused_too(tmp_path: Path) -> None:
    """use_liger_kernel=True of yours needs what the trick needs."""
    with pytest.raises(ValueError, match="fused_loss needs"):
        hf.training_arguments(hf.make_plan(), output_dir=tmp_path, use_liger_kernel=True)


def test_it_is_for_the_gpus_that_triton_knows() -> None:
    """An AMD GPU and a V100 will do; a Pascal card and Apple's GPU are told to leave it out."""
    plan, packages = hf.make_plan("fused_loss"), {"liger-kernel": "1"}
    amd = hf.Machine(gpu="MI300X", accelerator="rocm", gpus=1, packages=packages)
    assert plan.unmet(amd) == plan.unmet(replace(hf.Machine.named("V100-16GB"), packages=packages)) == []
    for old in (hf.Machine(gpu="P100", accelerator="cuda", capability=(6, 0), gpus=1, packages=packages),
                hf.Machine(gpu="Apple silicon", accelerator="mps", gpus=1, packages=packages)):  # fmt: skip
        [sentence] = plan.unmet(old)
        assert "Leave fused_loss out" in sentence


def test_sft_says_that_its_loss_does_it_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For SFTConfig the field stays off, with a word; your own value is taken."""
    monkeypatch.setattr(trainer, "require", lambda *_, **__: None)
    plan = hf.make_plan("fused_loss")
    with pytest.warns(UserWarning, match="SFTTrainer's default loss never makes the logits either"):
        args = hf.training_arguments(plan, SFTConfig, output_dir=tmp_path)
    assert args.use_liger_kernel is False
    assert hf.training_arguments(plan, output_dir=tmp_path).use_liger_kernel is True


@pytest.mark.slow
def test_the_logits_never_exist(tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """Through either door the forward pass returns a loss without logits, with the gradient of the plain loss."""
    torch.save(rows, tmp_path / "rows.pt")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    script = [sys.executable, __file__, str(tiny), str(tmp_path)]
    run = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    for door in ("trainer", "loop"):
        assert json.loads((tmp_path / f"{door}.json").read_text()) == {"logits": [False, False], "layers": False}
        plain, ours = train(door, hf.make_plan(), load(tiny), rows).gradients, torch.load(tmp_path / f"{door}.pt")
        distance = max(float((one - other).norm() / one.norm()) for one, other in zip(plain, ours, strict=True))
        print(f"\n{door}: {distance / EPS:.1f} eps of float32")
        assert distance < 48 * EPS


def _interpreted(door: str, tiny: str, folder: Path) -> None:
    """Train in this process as if it had a GPU, and write down what the forward passes returned."""
    loop.require = trainer.require = lambda *_, **__: None  # type: ignore[assignment]
    model: Any = load(Path(tiny))
    logits: list[bool] = []
    model.register_forward_hook(learning(lambda _module, _inputs, output: logits.append(output.logits is not None)))
    run = train(door, hf.make_plan("fused_loss"), model, torch.load(folder / "rows.pt"))
    patched = "liger" in str(type(model.model.norm).forward.__module__)
    (folder / f"{door}.json").write_text(json.dumps({"logits": logits, "layers": patched}))
    torch.save(run.gradients, folder / f"{door}.pt")


if __name__ == "__main__":
    for name in ("trainer", "loop"):
        _interpreted(name, sys.argv[1], Path(sys.argv[2]))

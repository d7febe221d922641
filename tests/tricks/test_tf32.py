"""tf32 is a switch of the process that this CPU cannot show at work: seen are the switch, the setting and the need."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from doors import DOORS, ONLY_CPU, REFUSE
from transformers.utils.import_utils import enable_tf32

from hf_efficient import Machine, make_accelerator, make_plan, training_arguments
from hf_efficient.emit.process import switch_process


@DOORS
@ONLY_CPU
def test_tf32_is_refused_without_ampere(door: str) -> None:
    """A CPU has no TF32, so both doors stop and say to leave it out."""
    with pytest.raises(ValueError, match=r"tf32 needs an accelerator.*Leave tf32 out: only Ampere and newer GPUs"):
        REFUSE[door](make_plan("tf32"))


def test_switch_is_set_for_every_backend() -> None:
    """switch_process sets torch's own switch, and cuBLAS and cuDNN follow it; another plan leaves it alone."""
    torch.backends.fp32_precision = "ieee"
    switch_process(make_plan("bf16"))
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    switch_process(make_plan("tf32"))
    places = (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    assert [place.fp32_precision for place in places] == ["tf32"] * 3


@DOORS
def test_both_doors_set_the_same_switch(door: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On an A100 building the door's first object sets the switch; that the matmuls obey cannot be seen here."""
    monkeypatch.setattr(f"hf_efficient.emit.{door}.training_machine", lambda: Machine.named("A100-40GB"))
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    enable_tf32.cache_clear()  # transformers sets it once per process
    torch.backends.fp32_precision = "ieee"
    plan = make_plan("tf32")
    if door == "trainer":
        assert training_arguments(plan, output_dir=tmp_path).tf32 is True
    else:
        make_accelerator(plan)
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_tf32_needs_ampere() -> None:
    """A T4 is told that it has 7.5 of the 8.0 that are needed, an L4 has what it takes."""
    plan = make_plan("tf32")
    [sentence] = plan.unmet(Machine.named("T4"))
    assert sentence.startswith("tf32 needs a GPU of compute capability 8.0, and T4 has 7.5. Leave tf32 out")
    assert plan.unmet(Machine.named("L4")) == []

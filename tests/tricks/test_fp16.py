"""fp16 needs an accelerator: on a CPU the stack takes the flag and trains in fp32, so the doors refuse it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from doors import DOORS, ONLY_CPU, REFUSE

from hf_efficient import Machine, make_accelerator, make_plan, training_arguments


@DOORS
@ONLY_CPU
def test_fp16_is_refused_without_accelerator(door: str) -> None:
    """Both doors stop with what is missing and what to use instead; float16 itself cannot be seen on this machine."""
    with pytest.raises(ValueError, match=r"fp16 needs an accelerator, and .* Use bf16, .* silent fp32 run\.$"):
        REFUSE[door](make_plan("fp16"))


def test_fp16_reaches_both_objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a T4 the arguments and the Accelerator say fp16; whether autocast then runs cannot be seen here."""
    for module in ("trainer", "loop"):
        monkeypatch.setattr(f"hf_efficient.emit.{module}.training_machine", lambda: Machine.named("T4"))
    plan = make_plan("fp16")
    args = training_arguments(plan, output_dir=tmp_path)
    assert (args.fp16, args.bf16, args.mixed_precision) == (True, False, "fp16")
    assert make_accelerator(plan).mixed_precision == "fp16"


def test_weights_are_loaded_in_float32() -> None:
    """from_pretrained is asked for float32, since GradScaler refuses float16 gradients; a T4 and an A100 will do."""
    plan = make_plan("fp16")
    assert plan["model"] == {"dtype": "float32"}
    assert plan.unmet(Machine.named("T4")) == plan.unmet(Machine.named("A100-80GB")) == []


def test_fp16_and_bf16_conflict() -> None:
    """Two precisions in one plan are a conflict that names both."""
    with pytest.raises(ValueError, match="fp16 and bf16 are both of the family precision"):
        make_plan("fp16", "bf16")

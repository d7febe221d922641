"""The model computes attention with the kernel of the plan; flash and flex kernels have no backward pass on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from doors import DOORS, load, train
from transformers import AutoModelForCausalLM
from trl import SFTConfig

from hf_efficient import Machine, make_plan, model_keywords, training_arguments

VARIANTS = ["attention('eager')", "attention('flash_attention_2')", "attention('flash_attention_3')",
            "attention('flex_attention')", "attention('kernels-community/flash-attn2')",
            "attention('kernels-community/vllm-flash-attn3')"]  # fmt: skip


@DOORS
@pytest.mark.parametrize(("spelling", "calls"), [("attention('eager')", 0), ("attention", 4)])
def test_the_kernel_is_the_plans(door: str, spelling: str, calls: int, tiny: Path, rows: list[Any]) -> None:
    """Two layers in two updates call torch's fused attention four times under sdpa, and never under eager."""
    plan = make_plan(spelling)
    model, real, seen = load(tiny, plan), torch.nn.functional.scaled_dot_product_attention, []

    def fused(*args: Any, **keywords: Any) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())  # `windows` tries the loss first, without gradients
        return real(*args, **keywords)

    with patch.object(torch.nn.functional, "scaled_dot_product_attention", fused):
        train(door, plan, model, rows)
    assert sum(seen) == calls
    assert calls or not seen
    assert model.config._attn_implementation == ("sdpa" if calls else "eager")


@pytest.mark.parametrize("spelling", VARIANTS[1:])
def test_other_kernels_are_asked_for_by_name(spelling: str, tmp_path: Path) -> None:
    """The name reaches from_pretrained, and SFTTrainer for a model that it loads itself."""
    plan = make_plan(spelling)
    name = spelling.split("'")[1]
    assert model_keywords(plan) == {"attn_implementation": name}
    with patch("hf_efficient.emit.trainer.require"):
        args = training_arguments(plan, SFTConfig, output_dir=tmp_path)
    assert args.model_init_kwargs == {"attn_implementation": name}


def test_transformers_knows_flash_and_flex(tiny: Path) -> None:
    """transformers takes the names: flex is set, and flash is refused here for want of its package."""
    flex = AutoModelForCausalLM.from_pretrained(tiny, **model_keywords(make_plan("attention('flex_attention')")))
    assert flex.config._attn_implementation == "flex_attention"
    with pytest.raises(ImportError, match="FlashAttention2"):
        AutoModelForCausalLM.from_pretrained(tiny, **model_keywords(make_plan("attention('flash_attention_2')")))


@pytest.mark.parametrize(
    ("spelling", "card", "remedy"),
    [
        ("attention('flash_attention_2')", "T4", "Take attention('sdpa')"),
        ("attention('flash_attention_2')", "A10", "pip install flash-attn"),
        ("attention('flash_attention_3')", "A10", "FlashAttention 3 is for Hopper"),
        ("attention('kernels-community/flash-attn2')", "A10", "pip install kernels"),
    ],
)
def test_what_a_kernel_needs_is_named(spelling: str, card: str, remedy: str) -> None:
    """A card that is too old and a package that is missing are told what to take instead."""
    assert remedy in " ".join(make_plan(spelling).unmet(Machine.named(card)))
    assert make_plan("attention").unmet(Machine.named(card)) == []

"""Activation checkpointing recomputes, the non-reentrant way, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, ONLY_CPU, REFUSE, learning, load, train

from hf_efficient import Machine, make_plan

VARIANTS = ["activation_checkpointing(2)", "activation_checkpointing(offload=True)"]

RECOMPUTED = {"adamw_fused": [1, 1], "activation_checkpointing": [2, 2], "activation_checkpointing(2)": [1, 2]}


@DOORS
@pytest.mark.parametrize(("name", "forwards"), RECOMPUTED.items())
def test_treated_layers_run_twice(door: str, name: str, forwards: list[int], tiny: Path, rows: list[Any]) -> None:
    """A treated layer runs forward twice per update and an untreated one once, always with gradients enabled."""
    model, calls = load(tiny), [[], []]
    for layer, seen in zip(model.model.layers, calls, strict=True):
        layer.mlp.register_forward_pre_hook(learning(lambda *_, seen=seen: seen.append(torch.is_grad_enabled())))
    train(door, make_plan(name), model, rows, updates=1)
    assert sorted(map(len, calls)) == forwards
    # The reentrant kind runs its first forward without gradients.
    assert all(enabled for seen in calls for enabled in seen)


@DOORS
def test_layers_learn_over_frozen_embeddings(door: str, tiny: Path, rows: list[Any]) -> None:
    """With frozen embeddings every layer has a gradient, which the reentrant kind would lose."""
    model = load(tiny)
    model.model.embed_tokens.requires_grad_(False)
    run = train(door, make_plan("activation_checkpointing"), model, rows, updates=1)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert run.gradients[0].numel() == trainable
    assert run.gradients[0].count_nonzero() > 0.9 * trainable


@DOORS
@ONLY_CPU
def test_offload_is_refused_without_accelerator(door: str) -> None:
    """Offload moves nothing on a CPU, so its effect cannot be seen here: both doors refuse it and say why."""
    with pytest.raises(ValueError, match=r"needs an accelerator.*Leave offload out: on a CPU .* host memory already"):
        REFUSE[door](make_plan("activation_checkpointing(offload=True)"))


def test_offload_is_emitted_for_a_gpu() -> None:
    """On a GPU offload is asked of both doors, beside the non-reentrant kind, and no need is unmet."""
    plan = make_plan("activation_checkpointing(2, offload=True)")
    asked = {"use_reentrant": False, "every_n_layers": 2, "offload": True}
    assert plan["trainer"]["activation_checkpointing_kwargs"] == asked
    keywords = dict(plan.tricks[0].prepare.keywords)
    assert keywords.pop("activation_checkpointing_kwargs") | keywords == asked
    assert plan.unmet(Machine.named("T4")) == []

"""Training sees noisy embeddings and evaluation does not, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, learning, load, train
from torch import nn

from hf_efficient import make_plan, prepare_model

VARIANTS = ["neftune(15)"]


def embedded(door: str, name: str, tiny: Path, rows: list[Any]) -> list[torch.Tensor]:
    """Return what the embedding layer hands on in one update, minus the embeddings themselves."""
    model, noise = load(tiny), []

    def note(layer: nn.Module, args: tuple[torch.Tensor]) -> None:
        clean = nn.functional.embedding(model.inputs, model.model.embed_tokens.weight)
        noise.append((args[0] - clean).detach())

    model.register_forward_pre_hook(lambda _, args, kept: setattr(model, "inputs", kept["input_ids"]), with_kwargs=True)
    model.model.layers[0].input_layernorm.register_forward_pre_hook(learning(note))
    train(door, make_plan(name), model, rows, updates=1)
    return noise


@DOORS
@pytest.mark.parametrize(("name", "alpha"), [("neftune", 5.0), ("neftune(15)", 15.0)])
def test_noise_is_as_large_as_asked_and_added_once(
    door: str, name: str, alpha: float, tiny: Path, rows: list[Any]
) -> None:
    """The noise is uniform within alpha / sqrt(length x dimension), which noise added twice would exceed."""
    [noise] = embedded(door, name, tiny, rows)
    limit = alpha / (16 * 64) ** 0.5
    assert 0.99 * limit < noise.abs().max() < limit * 1.0001
    assert noise.std().item() == pytest.approx(limit / 3**0.5, rel=0.02)


@DOORS
def test_without_it_there_is_no_noise(door: str, tiny: Path, rows: list[Any]) -> None:
    """A plan that is silent leaves the embeddings as they are."""
    [noise] = embedded(door, "adamw_fused", tiny, rows)
    assert noise.abs().max() < 1e-6


@DOORS
def test_evaluation_is_without_noise(door: str, tiny: Path, rows: list[Any]) -> None:
    """After training, two evaluations of the same row agree to the last bit, and so does a model saved and loaded."""
    run = train(door, make_plan("neftune"), load(tiny), rows, updates=1)
    row = rows[0]["input_ids"][None]
    with torch.no_grad():
        once, again = (run.model.eval()(row).logits for _ in range(2))
        other = load(tiny)
        other.load_state_dict(run.model.state_dict())
        assert torch.equal(once, again)
        assert torch.equal(once, other.eval()(row).logits)


def test_trainer_takes_its_noise_away_and_a_loop_keeps_one_hook(tiny: Path, rows: list[Any]) -> None:
    """Trainer's model has no hook left at the end of training, a prepared model has one."""
    trained = train("trainer", make_plan("neftune"), load(tiny), rows, updates=1).model
    prepared = prepare_model(make_plan("neftune"), load(tiny))
    assert [len(model.get_input_embeddings()._forward_hooks) for model in (trained, prepared)] == [0, 1]

"""APOLLO keeps moments of a projection of rank r in the blocks' linear layers, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from doors import DOORS, block_bytes, groups, load, train

from hf_efficient import Machine, make_optimizer, make_plan, training_arguments

apollo_torch = pytest.importorskip("apollo_torch")
MINI = "apollo(1, scale=128.0, scale_type='tensor')"
VARIANTS = ["apollo(1, scale=128.0, scale_type='tensor')"]


@pytest.mark.parametrize(("spelling", "rank"), [("apollo(8)", 8), (MINI, 1)])
@DOORS
def test_moments_have_rank_r(door: str, spelling: str, rank: int, tiny: Path, rows: list[Any]) -> None:
    """A linear layer of a block has moments of its larger side times the rank; all else has whole ones."""
    run = train(door, make_plan(spelling), load(tiny), rows)
    assert type(run.optimizer) is apollo_torch.APOLLOAdamW
    for name, parameter in run.model.named_parameters():
        state = run.optimizer.state[parameter]
        low = "proj" in name
        shape = parameter.shape
        if low:
            shape = (shape[0], rank) if shape[0] >= shape[1] else (rank, shape[1])
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == shape, name
        assert ("projector" in state) == low
        assert state["exp_avg"].count_nonzero() > 0


def test_state_is_smaller(tiny: Path, rows: list[Any]) -> None:
    """At rank 1 the blocks' linear layers have less than a tenth of AdamW's bytes, projections included."""
    runs = [train("loop", make_plan(*names), load(tiny), rows) for names in ([MINI], [])]
    ours, adamw = map(block_bytes, runs)
    assert 0 < ours < adamw / 10


def test_both_doors_build_the_same_optimizer(tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors: the arguments arrive, and weight decay does not."""
    plan = make_plan("apollo(8, scale=2.0, scale_type='tensor', update_proj_gap=50)")
    by_trainer, by_loop = (train(door, plan, load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    others, low = by_loop.optimizer.param_groups
    assert (low["rank"], low["scale"], low["scale_type"], low["update_proj_gap"]) == (8, 2.0, "tensor", 50)
    assert len(low["params"]) == 14
    assert others["weight_decay"] == low["weight_decay"] == 0


def test_a_model_without_linear_layers_in_blocks_is_refused() -> None:
    """GPT-2's layers are no nn.Linear: transformers says that nothing matches, instead of training with plain AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="No target modules found"):
        make_optimizer(make_plan("apollo"), model)


def test_a_checkpoint_is_resumed_once_torch_may_load_it(tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """The state holds objects that torch refuses to load unless told, and then the run goes on to the same weights."""
    from apollo_torch.random_projector import GradientProjector
    from transformers import Trainer

    def weights(resumed: str | None = None) -> list[Any]:
        model, fields = load(tiny), {"max_steps": 2, "save_steps": 1, "disable_tqdm": True, "learning_rate": 1e-3}
        args = training_arguments(make_plan("apollo(8)"), output_dir=str(tmp_path), **fields)
        Trainer(model, args, train_dataset=rows).train(resume_from_checkpoint=resumed)
        return list(model.parameters())

    whole = weights()
    with pytest.raises(UnpicklingError, match="GradientProjector"):
        weights(str(tmp_path / "checkpoint-1"))
    with torch.serialization.safe_globals([GradientProjector]):
        assert all(map(torch.equal, weights(str(tmp_path / "checkpoint-1")), whole))


def test_missing_package_is_named() -> None:
    """On a machine without apollo-torch the plan's need says how to install it."""
    bare = replace(Machine.named("A10"), packages={})
    assert make_plan("apollo").unmet(bare) == [
        "apollo needs the package apollo-torch, which is not installed. "
        "Run `pip install 'hf-efficient[apollo]'` (CC BY-NC 4.0: not for commercial use)."
    ]

"""Schedule-free AdamW trains at a constant rate; what is evaluated and saved is the average, through both doors."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, REFUSE, groups, load, train
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import LlamaForCausalLM

from hf_efficient import Machine, make_optimizer, make_plan, training_arguments
from hf_efficient.emit.python import python_snippet
from hf_efficient.train.loop_fields import loop_plan

schedulefree = pytest.importorskip("schedulefree")
VARIANTS = ["schedule_free(100)"]
RECIPES = {"trainer": "causal_lm", "loop": "accelerate_loop"}
ROOT = Path(__file__).parents[2]
Weights = dict[str, torch.Tensor]


@contextmanager
def watched(steps: list[Weights], evaluated: list[Weights]) -> Iterator[None]:
    """Note the sequence z of each update, and the weights of each forward pass of an evaluation."""
    names: dict[Any, str] = {}

    def note_step(optimizer: Any, *_: Any) -> None:
        steps.append({names[parameter]: state["z"].clone() for parameter, state in optimizer.state.items()})

    def note_forward(module: Any, _: Any) -> None:
        if isinstance(module, LlamaForCausalLM):
            names.update((parameter, name) for name, parameter in module.named_parameters())
            if not module.training:
                evaluated.append({name: parameter.detach().clone() for parameter, name in names.items()})

    hooks = [register_optimizer_step_post_hook(note_step), register_module_forward_pre_hook(note_forward)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@DOORS
def test_the_average_is_evaluated_and_saved(door: str, tiny: Path, tmp_path: Path) -> None:
    """A recipe's last evaluation and its saved model have the mean of the four steps' weights z."""
    data, out = tmp_path / "notes.jsonl", tmp_path / "out"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(20)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    main = runpy.run_path(str(ROOT / "recipes" / f"{RECIPES[door]}.py"))["main"]
    steps: list[Weights] = []
    evaluated: list[Weights] = []
    with watched(steps, evaluated):
        main([
            "--model", str(tiny), "--data", str(data), "--output_dir", str(out), "--max_steps", "4",
            "--learning_rate", "0.01", "--plan", "schedule_free",
        ])  # fmt: skip
    assert len(steps) == 4
    saved = load_file(out / "model.safetensors")
    for name, weight in saved.items():
        average = torch.stack([step[name] for step in steps]).mean(dim=0)
        torch.testing.assert_close(weight, average, rtol=1e-4, atol=1e-6)
        assert torch.equal(weight, evaluated[-1][name]), name
        assert not torch.allclose(weight, steps[-1][name], rtol=1e-4, atol=1e-6), name


@DOORS
def test_the_rate_is_constant(door: str, tiny: Path, rows: list[Any]) -> None:
    """The optimizer is schedulefree's, warms up by itself as told, and no schedule changes its rate."""
    run = train(door, make_plan("schedule_free(2)"), load(tiny), rows, updates=3)
    assert type(run.optimizer) is schedulefree.AdamWScheduleFree
    for group in run.optimizer.param_groups:
        assert (group["lr"], group["warmup_steps"], group["k"], group["lr_max"]) == (1e-3, 2, 3, 1e-3)


@pytest.mark.parametrize("spelling", ["schedule_free", "schedule_free(2)"])
def test_both_doors_build_the_same_optimizer(spelling: str, tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors."""
    by_trainer, by_loop = (train(door, make_plan(spelling), load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults


@pytest.mark.parametrize(
    ("given", "schedule", "warmup"),
    [({}, "constant", 5), ({"lr_scheduler_type": "linear", "warmup_steps": 7}, "linear", 7)],
    ids=["trick", "you"],
)
def test_your_schedule_wins_over_the_tricks_and_the_tricks_over_the_defaults(
    given: dict[str, Any], schedule: str, warmup: int, tiny: Path, tmp_path: Path
) -> None:
    """Both doors take schedule and warm-up from you, else from the trick, and neither the recipe's nor a default."""
    plan = make_plan("schedule_free(5)")
    args = training_arguments(plan, output_dir=str(tmp_path), **given)
    looped = loop_plan(plan, given, {"warmup_steps": 10})
    assert (args.lr_scheduler_type, args.warmup_steps) == (schedule, warmup)
    assert (looped["loop"]["lr_scheduler_type"], looped["loop"]["warmup_steps"]) == (schedule, warmup)
    assert make_optimizer(looped, load(tiny)).param_groups[0]["warmup_steps"] == warmup


def test_warmup_left_out_is_the_fields(tiny: Path) -> None:
    """Without the trick's argument the field `warmup_steps` reaches the optimizer of a hand-written loop."""
    plan = loop_plan(make_plan("schedule_free"), {"warmup_steps": 7}, {})
    assert make_optimizer(plan, load(tiny)).param_groups[0]["warmup_steps"] == 7


def test_a_share_of_the_updates_is_refused(tiny: Path, tmp_path: Path) -> None:
    """schedulefree would divide the learning rate by 0.05, so both doors stop with one sentence."""
    plan = make_plan("schedule_free")
    with pytest.raises(ValueError, match="start at 20 times your learning rate"):
        training_arguments(plan, output_dir=str(tmp_path), warmup_steps=0.05)
    with pytest.raises(ValueError, match="start at 20 times your learning rate"):
        make_optimizer(loop_plan(plan, {"warmup_steps": 0.05}, {}), load(tiny))


def test_the_emitted_loop_says_when_to_switch() -> None:
    """The lines for a loop of yours name both calls beside the optimizer."""
    lines = python_snippet(make_plan("schedule_free"), "accelerate")
    assert "# Call optimizer.train() before training, optimizer.eval() before evaluating and before saving." in lines


def test_another_optimizer_of_yours_takes_the_schedule_along(tmp_path: Path) -> None:
    """With `optim` of yours the whole trick goes, its constant schedule too, and the package is not asked for."""
    args = training_arguments(make_plan("schedule_free(5)"), output_dir=str(tmp_path), optim="adamw_torch")
    assert (args.optim, args.lr_scheduler_type, args.warmup_steps) == ("adamw_torch", "linear", 0)


@DOORS
def test_missing_package_is_named(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without schedulefree both doors stop with the sentence that says how to install it."""
    from hf_efficient.emit import loop, trainer

    for module in (loop, trainer):
        monkeypatch.setattr(module, "training_machine", lambda: replace(Machine(), packages={}))
    with pytest.raises(ValueError, match=r"the package schedulefree.*pip install 'hf-efficient\[optimizers\]'"):
        REFUSE[door](make_plan("schedule_free"))

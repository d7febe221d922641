"""Faults beside accumulation in a loop of one's own, each of which `verify` has to name; and loops that are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_planted import ACCUMULATED, broken, loop
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

import hf_efficient as hf
from hf_efficient.plan import Plan
from hf_efficient.promises.heads import HEADS
from hf_efficient.trick import Trick

pytestmark = pytest.mark.launch  # half a minute together


@pytest.fixture(scope="module")
def llama(config_folder: Callable[[str], str]) -> str:
    """A folder with the configuration of a Llama."""
    return config_folder("llama")


def plain_loop(*, optimizers: Callable[[Any], Any], during: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """Return a right loop with these optimizers; `during(model, optimizers, steps)` is called before each update."""

    def train(plan: Plan, model: nn.Module, rows: Any, collate: Any) -> None:
        steps = plan["accelerator"].get("gradient_accumulation_steps", 1)
        batches = list(DataLoader(rows, plan["dataloader"]["batch_size"], collate_fn=collate))
        stepped = optimizers(list(model.parameters()))
        for start in range(0, len(batches), steps):
            window = batches[start : start + steps]
            items = torch.tensor(sum(int(batch["labels"][..., 1:].ne(-100).sum()) for batch in window))
            for batch in window:
                model(**batch, num_items_in_batch=items).loss.backward()
            clip_grad_norm_(model.parameters(), 0.01)
            during(model, stepped, steps)
            for optimizer in stepped:
                optimizer.step()
            model.zero_grad()

    return train


def _one(parameters: Any) -> Any:
    return [torch.optim.SGD(parameters, lr=0.1)]


def _two(parameters: Any) -> Any:
    return [torch.optim.SGD(parameters[:4], lr=0.1), torch.optim.SGD(parameters[4:], lr=0.1)]


def _all_but_one(parameters: Any) -> Any:
    return [torch.optim.SGD(parameters[:-1], lr=0.1)]


@pytest.mark.parametrize("optimizers", [_one, _two])
def test_a_clip_by_its_own_name_and_two_optimizers_are_not_blamed(llama: str, optimizers: Callable[[Any], Any]) -> None:
    """A loop that has imported clip_grad_norm_ itself, and one with two optimizers, are right."""
    found = hf.verify(ACCUMULATED, model=llama, loop=plain_loop(optimizers=optimizers))
    assert [verdict.verdict for verdict in found] == ["exact"] * 2, found


def test_parameters_without_an_optimizer_are_found(llama: str) -> None:
    """Parameters that have gradients and are never updated are named, whatever trick is on."""
    found = hf.verify(ACCUMULATED, model=llama, loop=plain_loop(optimizers=_all_but_one))
    assert "no optimizer, lm_head.weight" in broken(found).why
    assert "no optimizer" in broken(found, "no trick").why


def test_an_optimizer_stepped_twice_is_found(llama: str) -> None:
    """An update too many is counted, and no trick is blamed where there is none."""
    twice = plain_loop(optimizers=_one, during=lambda model, optimizers, steps: optimizers[0].step())
    assert "6 updates instead of 3" in broken(hf.verify(ACCUMULATED, model=llama, loop=twice)).why


def test_gradients_that_are_not_zeroed_are_found(llama: str) -> None:
    """Gradients of the update before are named where they are left."""
    kept = loop(zeroed=False)
    assert "earlier updates" in broken(hf.verify(ACCUMULATED, model=llama, loop=kept)).why


def _less(model: Any, optimizers: Any, steps: int) -> None:
    for module in model.modules():
        if steps > 1 and getattr(module, "attention_dropout", 0.0):
            module.attention_dropout /= 2


def _asleep_in_part(model: Any, optimizers: Any, steps: int) -> None:
    if steps > 1:
        model.model.layers[0].self_attn.eval()


@pytest.mark.parametrize(("during", "word"), [(_less, "drops otherwise"), (_asleep_in_part, "evaluation mode")])
def test_dropout_that_changes_under_accumulation_is_found(tmp_path: Path, during: Any, word: str) -> None:
    """Dropout that is an attribute, changed or asleep in one layer where only accumulation regroups the masks."""
    config = HEADS["llama"]()
    config.attention_dropout = 0.1
    config.save_pretrained(tmp_path)
    found = hf.verify(ACCUMULATED, model=str(tmp_path), loop=plain_loop(optimizers=_one, during=during))
    assert found[0].verdict == "exact"
    assert word in broken(found).why


@pytest.mark.parametrize(
    ("numerics", "settings", "word"),
    [
        ("exact", {"gradient_checkpointing": True, "learning_rate": 3.0}, "learning rates"),
        ("different", {"lr_scheduler_type": "cosine", "adam_beta1": 0.5, "optim": "adamw_torch"}, "update"),
    ],
)
def test_a_trick_with_settings_beside_its_own_is_found(llama: str, numerics: Any, settings: Any, word: str) -> None:
    """A trick that promises the same training keeps the learning rate; a schedule of its own excuses no other betas."""
    trick = Trick(
        name="planted", family="checkpointing", saves="", costs="", numerics=numerics,
        shows=("recomputed", "optimizer"), trainer=settings,
    )  # fmt: skip
    assert word in broken(hf.verify(trick, model=llama), "planted").why


def test_clipping_by_value_or_in_parts_is_not_blamed(llama: str) -> None:
    """Clipping that no norm of the whole gradient describes is held against the same loop without the trick."""

    def by_value(model: nn.Module, optimizers: Any, steps: int) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)

    def in_parts(model: nn.Module, optimizers: Any, steps: int) -> None:
        clip_grad_norm_(list(model.parameters())[:3], 1e-3)

    for during in (by_value, in_parts):
        found = hf.verify(ACCUMULATED, model=llama, loop=plain_loop(optimizers=_one, during=during))
        assert [verdict.verdict for verdict in found] == ["exact"] * 2, found
        assert "clips by value or in parts" in found[1].why


def test_an_optimizer_with_other_settings_is_found(llama: str) -> None:
    """Another momentum under accumulation is named, though the gradient is right."""

    def momentum(model: nn.Module, optimizers: Any, steps: int) -> None:
        for group in optimizers[0].param_groups:
            group["momentum"] = 0.9 if steps > 1 else 0.0

    found = hf.verify(ACCUMULATED, model=llama, loop=plain_loop(optimizers=_one, during=momentum))
    assert "momentum" in broken(found).why

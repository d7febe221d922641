"""Batches come from workers, ahead of time, through both doors; pinned memory needs an accelerator and is not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, ONLY_CPU, load, train
from torch.utils.data import DataLoader, Dataset, get_worker_info
from transformers import Trainer

from hf_efficient import Machine, dataloader_keywords, make_plan, training_arguments
from hf_efficient.emit.loop import settle_loop
from hf_efficient.emit.trainer import settle
from hf_efficient.plan import Plan

VARIANTS = ["data_loading(0)"]

PLAN = "data_loading(2, 3)"
IN_TIME = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}
AT_ONCE = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}


class Workers(Dataset[Any]):
    """Rows that say which worker made them, -1 for none."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        worker = get_worker_info()
        return {"labels": torch.tensor([worker.id if worker else -1])}


def loader(door: str, plan: Plan, folder: Path, **yours: Any) -> DataLoader[Any]:
    """Return the loader of either door; `yours` are keywords of DataLoader."""
    if door == "loop":
        return DataLoader(Workers(), batch_size=8, **dataloader_keywords(plan, **yours))
    yours = {f"dataloader_{key}": value for key, value in yours.items()}
    args = training_arguments(plan, output_dir=folder, remove_unused_columns=False, **yours)
    return Trainer(torch.nn.Linear(1, 1), args, train_dataset=Workers()).get_train_dataloader()


def settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what the real loader will do."""
    return {key: getattr(loader, key) for key in IN_TIME}


@DOORS
def test_workers_make_the_batches(door: str, tmp_path: Path) -> None:
    """The loader has the plan's workers, prefetching and persistence, and both workers make batches."""
    made = loader(door, make_plan(PLAN), tmp_path)
    assert settings(made) == IN_TIME
    assert {batch["labels"][0].item() for batch in made} == {0, 1}


@DOORS
@pytest.mark.parametrize(("name", "yours"), [("data_loading(0)", {}), (PLAN, {"num_workers": 0})])
def test_without_workers_nothing_needs_them(door: str, name: str, yours: dict[str, Any], tmp_path: Path) -> None:
    """With 0 workers, the plan's or yours, nothing is prefetched and nobody persists, which torch would refuse."""
    made = loader(door, make_plan(name), tmp_path, **yours)
    assert settings(made) == AT_ONCE
    assert {batch["labels"][0].item() for batch in made} == {-1}


def test_what_your_zero_workers_leave_out_is_said() -> None:
    """The settled plan says that prefetching and persistence are left out for want of workers."""
    notes = settle(make_plan("data_loading"), yours={"dataloader_num_workers": 0}).notes
    assert notes == (
        "dataloader_prefetch_factor of data_loading is left out: there are 0 workers.",
        "dataloader_persistent_workers of data_loading is left out: there are 0 workers.",
    )


@DOORS
def test_same_batches_in_the_same_order(door: str, tiny: Path, rows: list[Any]) -> None:
    """Workers change nothing: both updates have the gradients of a run without them, to the last bit."""
    ahead, at_once = (train(door, make_plan(name), load(tiny), rows) for name in (PLAN, "data_loading(0)"))
    assert ahead.loader.num_workers == 2
    assert all(torch.equal(one, other) for one, other in zip(ahead.gradients, at_once.gradients, strict=True))


@DOORS
@ONLY_CPU
def test_nothing_is_pinned_without_accelerator(door: str, tmp_path: Path) -> None:
    """Pinning does nothing on a CPU, so its effect is not seen here: the loader leaves it out, and the plan says so."""
    plan = make_plan("data_loading")
    assert loader(door, plan, tmp_path).pin_memory is False
    settled = settle(plan) if door == "trainer" else settle_loop(plan)
    target, key = ("trainer", "dataloader_pin_memory") if door == "trainer" else ("dataloader", "pin_memory")
    assert (settled[target][key], settled.author(target, key)) == (False, "machine")


def test_pinned_memory_is_asked_for_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the plan's pinning reaches the loader, and `pinned=False` switches it off."""
    monkeypatch.setattr("hf_efficient.emit.loop.training_machine", lambda: Machine.named("T4"))
    for name, pinned in {"data_loading": True, "data_loading(pinned=False)": False}.items():
        plan = make_plan(name)
        assert dataloader_keywords(plan)["pin_memory"] is pinned
        assert plan["trainer"]["dataloader_pin_memory"] is pinned

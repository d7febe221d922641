"""The place of a hand-written loop in its run, on an accelerator that is a stand-in: what it logs and saves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hf_efficient as hf
from hf_efficient.train.loop_fields import loop_plan
from hf_efficient.train.loop_state import LoopState


class Loader:
    """A loader of `batches` batches that is told its epoch."""

    persistent_workers = False

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.batches))

    def set_epoch(self, epoch: int) -> None:
        """The order is always the same."""


def stand_in(ranks: tuple[int, ...] = (0, 1)) -> Any:
    """Two processes, of which `ranks` write their random numbers; the other one's loss is as large as this one's."""

    def save_state(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        for rank in ranks:
            (Path(folder) / f"random_states_{rank}.pkl").write_bytes(b"\x80\x04N.")

    return SimpleNamespace(
        num_processes=2,
        gradient_accumulation_steps=2,
        state=SimpleNamespace(deepspeed_plugin=None),
        distributed_type=SimpleNamespace(value="MULTI_CPU"),
        is_main_process=True,
        wait_for_everyone=lambda: None,
        save_state=save_state,
        reduce=lambda loss, how: loss * {"sum": 2, "mean": 1}[how],
    )


def started(folder: Path, accelerator: Any, updates: int = 4, **fields: Any) -> LoopState:
    """A run of so many updates that has just begun."""
    given = {"output_dir": str(folder), "per_device_train_batch_size": 2, "logging_steps": 1, "max_steps": updates}
    state = LoopState(loop_plan(hf.make_plan(), given | fields, {}), accelerator)
    state.start(SimpleNamespace(state_dict=dict), updates)  # type: ignore[arg-type]
    return state


def train(state: LoopState, batches: int) -> None:
    """Pull windows of two as `windows` does, which looks for the next micro-batch before the update is counted."""
    while state.done < state.updates:
        left = state.batches(Loader(batches))  # type: ignore[arg-type]
        while window := [batch for batch, _ in zip(left, range(2), strict=False)]:
            assert window
            state.updated(SimpleNamespace(items=torch.tensor(3), loss=torch.tensor(1.5)))  # type: ignore[arg-type]


def test_a_logged_loss_is_the_sum_over_the_processes(tmp_path: Path) -> None:
    """Each has divided by the items of all: their parts add up to the mean."""
    state = started(tmp_path, stand_in(), save_strategy="no")
    train(state, 4)
    assert state.losses == [(update, 3.0) for update in (1, 2, 3, 4)]


def test_a_checkpoint_without_every_process_is_not_whole(tmp_path: Path) -> None:
    """Two machines with an output folder of their own: the first save says so, and leaves no checkpoint."""
    state = started(tmp_path, stand_in(ranks=(0,)), save_steps=1)
    with pytest.raises(ValueError, match="must be one folder that all machines see"):
        train(state, 4)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_the_newest_are_kept_not_those_with_most_updates(tmp_path: Path) -> None:
    """A checkpoint of a longer run before does not outlive those of this one."""
    earlier = tmp_path / "checkpoint-900"
    earlier.mkdir()
    os.utime(earlier, (1, 1))
    train(started(tmp_path, stand_in(), save_steps=1, save_total_limit=1), 4)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]

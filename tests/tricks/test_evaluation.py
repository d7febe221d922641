"""Evaluation takes few rows at a time and keeps their logits on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from doors import load
from torch.utils.data import DataLoader
from transformers import Trainer, default_data_collator
from transformers.trainer_pt_utils import EvalLoopContainer

from hf_efficient import make_accelerator, make_plan, training_arguments
from hf_efficient.emit.targets import Options, emit
from hf_efficient.train.evaluate import mean_label_loss
from hf_efficient.train.loop_fields import loop_plan

VARIANTS = ["evaluation(2, 3)"]


@pytest.mark.parametrize(("name", "most"), [("evaluation", 4), ("evaluation(2, 3)", 6), ("adamw_fused", 64)])
def test_few_logits_wait_on_the_device(
    name: str, most: int, tiny: Path, rows: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose logits Trainer holds as tensors at once: one batch (three), without the trick all of them."""
    held: list[int] = []
    add = EvalLoopContainer.add

    def watch(self: EvalLoopContainer, tensors: Any) -> None:
        add(self, tensors)
        if getattr(self.tensors, "ndim", 0) == 3:
            held.append(len(self.tensors))

    monkeypatch.setattr(EvalLoopContainer, "add", watch)
    args = training_arguments(make_plan(name), output_dir=tmp_path, disable_tqdm=True)
    trainer = Trainer(load(tiny), args, eval_dataset=rows, compute_metrics=lambda seen: {"rows": len(seen.predictions)})
    assert trainer.evaluate()["eval_rows"] == 64
    assert max(held) == most


def test_metrics_are_the_same(tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """Loss and metrics do not change."""
    results = []
    for name in ("evaluation", "adamw_fused"):
        args = training_arguments(make_plan(name), output_dir=tmp_path, disable_tqdm=True)
        metrics = {"compute_metrics": lambda seen: {"mean": float(numpy.abs(seen.predictions).mean())}}
        found = Trainer(load(tiny), args, eval_dataset=rows, **metrics).evaluate()
        results.append((found["eval_loss"], found["eval_mean"]))
    assert results[0] == pytest.approx(results[1], rel=1e-6)


def test_loop_evaluates_few_rows_at_a_time(tiny: Path, rows: list[Any]) -> None:
    """A loop's loader for evaluation has the plan's batch, unless you say another, and the loss is the same."""
    plan = loop_plan(make_plan("evaluation(2)"), {}, {})
    assert loop_plan(plan, {"per_device_eval_batch_size": 16}, {})["loop"]["per_device_eval_batch_size"] == 16
    accelerator = make_accelerator(plan)
    model, seen, losses = accelerator.prepare(load(tiny)), set(), []
    model.register_forward_pre_hook(lambda _, args, kept: seen.add(len(kept["input_ids"])), with_kwargs=True)
    for size in (plan["loop"]["per_device_eval_batch_size"], 64):
        loader = accelerator.prepare(DataLoader(rows, batch_size=size, collate_fn=default_data_collator))
        losses.append(mean_label_loss(model, loader, accelerator))
    assert {2, 64} <= seen  # and the parts of a batch, on which the loss is tried
    assert max(seen) == 64
    assert torch.tensor(losses[0]).item() == pytest.approx(losses[1], rel=1e-6)


def test_the_python_lines_of_a_loop_say_it() -> None:
    """The emitted lines name the rows per evaluation batch."""
    assert "per_device_eval_batch_size = 4  # evaluation" in emit(
        make_plan("evaluation"), "python", Options(door="accelerate")
    )

"""Adafactor's state is a row and a column per matrix, through both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doors import DOORS, groups, load, train
from transformers.optimization import Adafactor

from hf_efficient import make_plan


@DOORS
def test_state_is_a_row_and_a_column(door: str, tiny: Path, rows: list[Any]) -> None:
    """A matrix has one row and one column of second moments, a vector its own, and first moments do not exist."""
    run = train(door, make_plan("adafactor"), load(tiny), rows)
    assert type(run.optimizer) is Adafactor
    for parameter in run.model.parameters():
        state = {key: value.shape for key, value in run.optimizer.state[parameter].items() if hasattr(value, "shape")}
        state.pop("RMS", None)  # one number
        rows_and_columns = {"exp_avg_sq_row": parameter.shape[:1], "exp_avg_sq_col": parameter.shape[1:]}
        assert state == (rows_and_columns if parameter.ndim == 2 else {"exp_avg_sq": parameter.shape})


def test_both_doors_build_the_same_optimizer(tiny: Path, rows: list[Any]) -> None:
    """Class, groups and defaults agree over the doors: your learning rate and neither relative nor scaled steps."""
    by_trainer, by_loop = (train(door, make_plan("adafactor"), load(tiny), rows) for door in ("trainer", "loop"))
    assert groups(by_trainer) == groups(by_loop)
    assert by_trainer.optimizer.defaults == by_loop.optimizer.defaults
    for group in by_loop.optimizer.param_groups:
        assert (group["relative_step"], group["scale_parameter"], group["lr"]) == (False, False, 1e-3)

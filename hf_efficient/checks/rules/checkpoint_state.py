"""What the log of a checkpoint says of the run that wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, warning
from hf_efficient.reading.settings import Settings

STATE = "state"
MANY = 3
"""Logged gradient norms in a row that are no numbers; one or two are a GradScaler that looks for its scale."""


@check({"transformers": ">=4.38"}, seen="arithmetic")
def checkpoint_of_a_diverged_run(checkpoint: Settings) -> Iterator[Finding]:
    """Find a checkpoint whose log has losses or gradient norms that are nan or infinite.

    trainer_state.json holds what was logged. From the first step with a loss that is nan the weights are nan, and
    resuming goes on with them. A loss of 0.0 with a gradient norm of nan is the same: Trainer's logging_nan_inf_filter
    (on by default) leaves such losses out of the mean. Single infinite norms under fp16 are steps that the GradScaler
    skips, and no fault.
    """
    rows = [row for row in _rows(checkpoint) if "loss" in row or "grad_norm" in row]
    found = _loss(rows) or _norms(rows)
    if found is None:
        return
    step, told = found
    yield warning(
        f"{told} in the log from step {step} on",
        why="The run had diverged by then: its weights are likely nan or useless, and resuming goes on with them.",
        fix=f"Resume from a checkpoint before step {step}, with a lower learning_rate or a longer warmup, or bf16"
        " instead of fp16, and look for rows without labels.",
        at=checkpoint.where(STATE),
    )


@check({"transformers": ">=4.30"}, seen="read source")
def best_checkpoint_gone(checkpoint: Settings) -> Iterator[Finding]:
    """Find a checkpoint whose best_model_checkpoint is not beside it any more.

    After resuming with load_best_model_at_end Trainer looks for that folder at the end, finds nothing, warns, and goes
    on with the last weights (trainer.py, _load_best_model). A folder that was copied elsewhere alone is not judged.
    """
    gone = checkpoint.text("best_missing")
    if gone:
        yield warning(
            f"best_model_checkpoint is {gone}, and that folder is gone",
            why="With load_best_model_at_end the run ends with the last weights instead of the best, with one line in"
            " the log.",
            fix=f"Put {gone} back, or take load_best_model_at_end for lost until a better evaluation comes; a larger"
            " save_total_limit keeps it.",
            at=checkpoint.where(STATE),
        )


def _rows(checkpoint: Settings) -> list[Mapping[str, Any]]:
    state: Any = checkpoint.get(STATE)
    history = state.get("log_history") if isinstance(state, Mapping) else None
    return [row for row in history if isinstance(row, Mapping)] if isinstance(history, list) else []


def _loss(rows: list[Mapping[str, Any]]) -> tuple[Any, str] | None:
    """Return the first step with a loss that is no number, or is 0.0 beside a norm that is none, and the words."""
    for row in rows:
        if _wild(row.get("loss")):
            return row.get("step", "?"), f"loss {row['loss']}"
        if row.get("loss") == 0 and _wild(row.get("grad_norm")):
            return row.get("step", "?"), f"loss 0.0 with grad_norm {row['grad_norm']}"
    return None


def _norms(rows: list[Mapping[str, Any]]) -> tuple[Any, str] | None:
    """Return the first of many steps in a row whose gradient norm is no number, and the words."""
    normed = [row for row in rows if "grad_norm" in row]
    for number in range(len(normed) - MANY + 1):
        if all(_wild(row["grad_norm"]) for row in normed[number : number + MANY]):
            return normed[number].get("step", "?"), f"grad_norm {normed[number]['grad_norm']}"
    return None


def _wild(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity")
    return isinstance(value, float) and not math.isfinite(value)

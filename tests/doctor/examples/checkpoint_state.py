"""Checkpoints in which the checks of checkpoint_state find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

import json
from typing import Any

NAN, INF = float("nan"), float("inf")


def _folder(rows: list[dict[str, Any]], best: str | None = None) -> dict[str, Any]:
    """Return a checkpoint; the folder around it is called by the number of the example."""
    state = {"global_step": 200, "log_history": rows, "best_model_checkpoint": best}
    return {"files": {"checkpoint-200/trainer_state.json": json.dumps(state)}}


EXAMPLES = {
    "checkpoint-of-a-diverged-run": (
        [
            _folder([{"step": 10, "loss": 2.5, "grad_norm": 1.0}, {"step": 20, "loss": NAN, "grad_norm": NAN}]),
            _folder([{"step": 10, "loss": 2.5}, {"step": 20, "loss": 0.0, "grad_norm": NAN}]),
            _folder([{"step": n, "loss": 2.5, "grad_norm": INF} for n in (10, 20, 30, 40)]),
        ],
        [
            _folder([{"step": 10, "loss": 2.5, "grad_norm": INF}, {"step": 20, "loss": 2.4, "grad_norm": 1.0}]),
            _folder([{"step": 10, "eval_loss": 0.0}, {"step": 20, "loss": 0.0, "grad_norm": 0.0}]),
        ],
    ),
    "best-checkpoint-gone": (
        [_folder([], "out/0/checkpoint-100"), _folder([{"step": 1, "loss": 1.0}], "/data/runs/1/checkpoint-50")],
        [_folder([], "0/checkpoint-200"), _folder([], "elsewhere/checkpoint-100"), _folder([])],
    ),
}

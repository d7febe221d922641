"""Setups in which the checks of evaluation_best find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_BEST = {"load_best_model_at_end": True}

EXAMPLES = {
    "best-model-at-other-steps": (
        [
            {"trainer": {**_BEST, "eval_strategy": "epoch"}},
            {"trainer": {**_BEST, "eval_strategy": "steps", "eval_steps": 200, "save_steps": 500}},
            {"sft": {**_BEST, "save_strategy": "epoch"}},
        ],
        [
            {"trainer": {**_BEST, "eval_strategy": "epoch", "save_strategy": "epoch"}},
            {"trainer": {**_BEST, "eval_strategy": "steps", "eval_steps": 250, "save_steps": 500}},
            {"trainer": {**_BEST, "eval_strategy": "epoch", "save_strategy": "best"}},
        ],
    ),
    "schedule-needs-evaluation": (
        [
            {"trainer": {"lr_scheduler_type": "reduce_lr_on_plateau"}},
            {"trainer": {"lr_scheduler_type": "greedy", "eval_strategy": "no"}},
        ],
        [
            {"trainer": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}},
            {"trainer": {"lr_scheduler_type": "cosine"}},
        ],
    ),
    "best-metric-not-computed": (
        [
            {
                "trainer": {
                    **_BEST,
                    "metric_for_best_model": "f1",
                    "eval_strategy": "epoch",
                    "save_strategy": "epoch",
                },
                "eval": {"compute_metrics": False},
            },
            {
                "trainer": {"save_strategy": "best", "metric_for_best_model": "eval_bleu", "eval_strategy": "epoch"},
                "eval": {"compute_metrics": None},
            },
        ],
        [
            {"trainer": {**_BEST, "metric_for_best_model": "eval_loss"}, "eval": {"compute_metrics": False}},
            {"trainer": {**_BEST, "metric_for_best_model": "f1"}, "eval": {"compute_metrics": True}},
            {"trainer": {**_BEST, "metric_for_best_model": "f1"}},
        ],
    ),
}

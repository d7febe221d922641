"""Setups in which the checks of evaluation_best find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_BEST = {"load_best_model_at_end": True}


def _measured(best: str, returned: str) -> dict[str, dict[str, str]]:
    return {
        "files": {
            "train.py": "from transformers import Trainer, TrainingArguments\n"
            f"def measure(prediction):\n    return {returned}\n"
            f"args = TrainingArguments('out', eval_strategy='epoch', save_strategy='epoch',"
            f" metric_for_best_model={best!r}, load_best_model_at_end=True)\n"
            "Trainer(model, args, train_dataset=a, eval_dataset=b, compute_metrics=measure).train()\n"
        }
    }


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
            {"trainer": {**_BEST, "evaluation_strategy": "steps", "eval_steps": 250, "save_steps": 500}},
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
    "best-metric-not-returned": (
        [
            _measured("f1", "{'accuracy': hits(prediction), 'precision': 0.5}"),
            _measured("eval_acc", "dict(eval_accuracy=hits(prediction))"),
        ],
        [
            _measured("accuracy", "{'accuracy': hits(prediction)}"),
            _measured("eval_f1", "{'accuracy': hits(prediction), **more}"),
            _measured("f1", "metric.compute(prediction)"),
            _measured("valid_accuracy", "{'accuracy': hits(prediction)}"),
            _measured("loss", "{'accuracy': hits(prediction)}"),
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

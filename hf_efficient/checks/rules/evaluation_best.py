"""Mistakes of the best model: not saved when it is measured, a metric or a schedule without evaluation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.evaluation import stock_trainer
from hf_efficient.finding import Finding, error
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.wording import nearest


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def best_model_at_other_steps(trainer: Settings) -> Iterator[Finding]:
    """Find load_best_model_at_end where the model is not saved when it is evaluated.

    The best model must have been saved: the arguments raise ValueError unless save_strategy equals eval_strategy (or is
    "best"), and with "steps" save_steps is a multiple of eval_steps (which is logging_steps where it is not set).
    """
    if not trainer.on("load_best_model_at_end"):
        return
    evaluated, saved = trainer.text("eval_strategy"), trainer.text("save_strategy")
    if not evaluated or not saved or saved == "best":
        return
    if evaluated != saved:
        yield error(
            f"load_best_model_at_end=True with eval_strategy={evaluated!r} and save_strategy={saved!r}",
            why="The arguments raise ValueError: the strategies must match, or the best model may not have been saved.",
            fix=f'Set both to "steps" or both to "epoch" (save_strategy={evaluated!r}), or save_strategy="best".'
            if evaluated != "no"
            else f'Set eval_strategy={saved!r}, or save_strategy="best" with an eval_strategy.',
            at=trainer.where("load_best_model_at_end"),
        )
        return
    every = trainer.number("eval_steps") if trainer.get("eval_steps") else trainer.number("logging_steps")
    steps = trainer.number("save_steps")
    if evaluated == "steps" and every >= 1 and 1 <= steps < 10**15 and steps % every:
        below = max(int(steps // every), 1) * every
        yield error(
            f"save_steps={steps} is no multiple of eval_steps={every}",
            why="With load_best_model_at_end the arguments raise ValueError: models would be saved unmeasured.",
            fix=f"Set save_steps={below:g}, or eval_steps to a divisor of {steps}.",
            at=trainer.where("save_steps"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def schedule_needs_evaluation(trainer: Settings) -> Iterator[Finding]:
    """Find a learning-rate schedule that follows the metric where nothing is evaluated.

    reduce_lr_on_plateau and greedy need an eval_strategy; the arguments raise ValueError without one.
    """
    how = trainer.text("lr_scheduler_type")
    if how in ("reduce_lr_on_plateau", "greedy") and trainer.text("eval_strategy") == "no":
        yield error(
            f'lr_scheduler_type={how!r} with eval_strategy="no"',
            why="The schedule follows the evaluation's metric; the arguments raise ValueError.",
            fix='Set eval_strategy="steps" (with eval_steps) or "epoch", or take another schedule.',
            at=trainer.where("lr_scheduler_type"),
        )


@check({"transformers": ">=4.30"}, seen="read source")
def best_metric_not_returned(trainer: Settings, script: Script) -> Iterator[Finding]:
    """Find metric_for_best_model under a name that the script's compute_metrics does not return.

    Names of metrics get the prefix eval_ where they have none, and metric_for_best_model too; what is not among them
    raises KeyError after the first evaluation (trainer.py, _determine_best_metric). Only a function whose returns are
    all dictionaries of literal keys is judged; several evaluation sets put their own names before the keys.
    """
    asked, made = trainer.text("metric_for_best_model"), stock_trainer(script)
    used = trainer.on("load_best_model_at_end") or trainer.text("save_strategy") == "best"
    node = next((k.value for k in made.node.keywords if k.arg == "compute_metrics"), None) if made is not None else None
    function = script.functions.get(node.id) if isinstance(node, ast.Name) else None
    names = _returned(function) if function is not None else set()
    name = asked.removeprefix("eval_")
    if not asked or not used or not names or name.endswith((*names, "loss", "runtime", "per_second", "epoch")):
        return
    yield error(
        f"metric_for_best_model={asked!r}, and compute_metrics returns {', '.join(sorted(names))}",
        why=f"No evaluation computes eval_{name}: KeyError after the first evaluation.",
        fix=f"Set metric_for_best_model={nearest(name, sorted(names)) or min(names)!r}, or let compute_metrics return "
        f"{name!r}.",
        at=trainer.where("metric_for_best_model"),
    )


def _returned(function: ast.FunctionDef) -> set[str]:
    """Return the keys, without eval_, that a function returns; empty where some of them cannot be known."""
    names: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Return):
            continue
        if isinstance(node.value, ast.Call) and dotted(node.value.func) == "dict" and not node.value.args:
            keys: list[object] = [keyword.arg for keyword in node.value.keywords]
        elif isinstance(node.value, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.value.keys]
        else:
            return set()
        if not all(isinstance(key, str) for key in keys):
            return set()
        names |= {str(key).removeprefix("eval_") for key in keys}
    return names


@check({"transformers": ">=4.30"}, seen="read source")
def best_metric_not_computed(
    trainer: Settings, script: Script | None = None, eval: Settings = NOTHING, sft: Settings = NOTHING
) -> Iterator[Finding]:
    """Find metric_for_best_model that nothing computes.

    Without compute_metrics an evaluation knows its loss and its times; another name raises KeyError after the first
    evaluation (trainer.py, _determine_best_metric). TRL's trainers log more, and a script's own trainer may, so those
    are not judged.
    """
    name = trainer.text("metric_for_best_model").removeprefix("eval_")
    used = trainer.on("load_best_model_at_end") or trainer.text("save_strategy") == "best"
    plain = eval.said("compute_metrics") and eval.get("compute_metrics") in (None, False)
    own = script is not None and stock_trainer(script) is None
    if not name or not used or not plain or own or sft or name.endswith(("loss", "runtime", "per_second")):
        return
    yield error(
        f"metric_for_best_model={name!r} without compute_metrics",
        why=f"No evaluation computes eval_{name}: KeyError after the first evaluation.",
        fix='Pass compute_metrics=... that returns it, or set metric_for_best_model="loss".',
        at=trainer.where("metric_for_best_model"),
    )

"""Mistakes in a loss of one's own under Trainer: compute_loss of a subclass, and compute_loss_func."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks import heads
from hf_efficient.checks.check import check
from hf_efficient.checks.loss_calls import ITEMS
from hf_efficient.checks.own_trainer import (
    Built,
    Function,
    assigned,
    built,
    is_mean,
    loss_function,
    speaks_of_labels,
    takes_items,
    uses_items,
)
from hf_efficient.checks.rules.accumulation import ACCEPTS, MENDS, SCALED, STEPS, head, steps
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, Settings

ACCEPTING = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""Auto classes nearly all of whose models take **kwargs: 193 of 196 and 36 of 36 known ones in transformers 5.24."""


@check({"transformers": ">=4.46"}, seen="ran on CPU")
def compute_loss_without_num_items(script: Script) -> Iterator[Finding]:
    """Find a compute_loss or a compute_loss_func that cannot be called with num_items_in_batch.

    Trainer.training_step calls `self.compute_loss(model, inputs, num_items_in_batch=...)`, and Trainer.compute_loss
    calls `compute_loss_func(outputs, labels, num_items_in_batch=...)`, at every step and whatever the accumulation. A
    function without that parameter and without **kwargs raises TypeError at the first step.
    """
    for one in built(script):
        method = one.method("compute_loss")
        if method is not None and not takes_items(method) and not _decorated(method):
            yield _type_error(
                script, method, f"compute_loss of {one.call.method}", "self, model, inputs, return_outputs=False"
            )
        given = loss_function(script, one.call)
        if given is not None and not takes_items(given) and not _decorated(given):
            name = given.name if isinstance(given, ast.FunctionDef) else "lambda"
            yield _type_error(script, given, f"compute_loss_func ({name})", "outputs, labels")


def _type_error(script: Script, function: Function, what: str, before: str) -> Finding:
    return error(
        f"{what} has no parameter {ITEMS}",
        why=f"Trainer passes it as the keyword argument {ITEMS}: TypeError at the first training step.",
        fix=f"Write the signature ({before}, {ITEMS}=None), and divide a sum by it: loss.sum() / {ITEMS}.",
        at=script.place(function),
    )


def _decorated(function: Function) -> bool:
    return isinstance(function, ast.FunctionDef) and any(
        ast.unparse(one) not in ("staticmethod", "override", "typing.override") for one in function.decorator_list
    )


@check({"transformers": ">=4.46"}, seen="ran on CPU")
def compute_loss_ignores_num_items(script: Script, trainer: Settings, model: Settings = NOTHING) -> Iterator[Finding]:
    """Find a loss of one's own that is a mean of each micro-batch where Trainer takes it for divided already.

    Trainer divides the loss by the accumulation steps only where the model's forward takes no **kwargs, or where
    loss_is_scaled_for_ga is False; with a compute_loss_func it never does. A compute_loss or compute_loss_func that
    returns a micro-batch mean then gives loss and gradient gradient_accumulation_steps times too large. Not meant: one
    that divides by num_items_in_batch or by the steps itself, that hands num_items_in_batch on to the model or to
    super().compute_loss, that returns a sum, and batches without "labels".
    """
    count = steps(trainer)
    if not count or script.named(*MENDS):
        return
    scaled, accepts = assigned(script, SCALED), assigned(script, ACCEPTS)
    for one in built(script) if scaled in (None, True) and accepts is None else ():
        found = _ignoring(script, one, model, scaled is True)
        if found is None:
            continue
        function, what = found
        yield error(
            f"{what} ignores {ITEMS}, with {STEPS}={count}",
            why=f"It returns the mean of each micro-batch, and Trainer adds {count} of them up undivided: loss and "
            f"gradient are {count} times too large.",
            fix=f'Return a sum divided by it: cross_entropy(..., reduction="sum") / {ITEMS}; or set {SCALED} = False '
            f"on the Trainer subclass, and Trainer divides by {count}.",
            at=script.place(function),
        )


def _ignoring(script: Script, one: Built, model: Settings, scaled: bool) -> tuple[Function, str] | None:
    """Return the function that is at fault, with the words for it."""
    if not one.stock or one.method("training_step") or one.method("get_batch_samples"):
        return None
    method = one.method("compute_loss")
    if method is None:
        given = loss_function(script, one.call)
        name = given.name if isinstance(given, ast.FunctionDef) else "a lambda"
        ignores = given is not None and takes_items(given) and not uses_items(given) and is_mean(given)
        return (given, f"compute_loss_func ({name})") if given is not None and ignores else None
    plain = not uses_items(method) and is_mean(method) and speaks_of_labels(method)
    if not takes_items(method) or not plain or not (scaled or _accepts(script, model)):
        return None
    return method, f"compute_loss of {one.call.method}"


def _accepts(script: Script, model: Settings) -> bool:
    """Say whether the model is known to be one for which Trainer leaves the loss undivided."""
    if assigned(script, "accepts_loss_kwargs") is not None:
        return False
    found = head(model, script)
    name = model.text("class").rpartition(".")[2]
    unknown = name in ACCEPTING and not found.verdict and not model.text("model_type")
    return found.verdict in (heads.USES, heads.DROPS) or unknown


@check({"transformers": ">=4.46"})
def compute_loss_without_return_outputs(script: Script, trainer: Settings) -> Iterator[Finding]:
    """Find a compute_loss that evaluation cannot call, because it takes no return_outputs.

    Trainer.prediction_step calls `compute_loss(model, inputs, return_outputs=True, ...)`: TypeError at the first
    evaluation, hours into a run. Without evaluation nothing happens.
    """
    name = "return_outputs"
    if trainer.text("eval_strategy") not in ("steps", "epoch"):
        return
    for one in built(script):
        method = one.method("compute_loss")
        if method is None or one.method("prediction_step") or _decorated(method) or method.args.kwarg is not None:
            continue
        if name not in [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]:
            yield warning(
                f"compute_loss of {one.call.method} has no parameter {name}, and eval_strategy is "
                f"{trainer.text('eval_strategy')}",
                why=f"Evaluation calls compute_loss with {name}=True: TypeError at the first evaluation.",
                fix=f"Add {name}=False to the signature, and return (loss, outputs) where it is true.",
                at=script.place(method),
            )


@check({"transformers": ">=4.46"})
def tokens_averaged_per_process(trainer: Settings, processes: int, model: Settings = NOTHING) -> Iterator[Finding]:
    """Tell that average_tokens_across_devices=False weighs the processes alike, whatever their labels.

    Each process divides its loss by its own num_items_in_batch, and DDP takes the mean: a token of a process with few
    labels counts more. True, the default, divides by the labels of all processes.
    """
    key = "average_tokens_across_devices"
    if trainer.get(key) is False and trainer.said(key) and processes > 1 and head(model, None).verdict == heads.USES:
        yield warning(
            f"{key}=False with {processes} processes",
            why="Each process divides by its own labels, so that tokens count unequally where their numbers differ.",
            fix=f"Leave {key} at its default, True.",
            at=trainer.where(key),
        )

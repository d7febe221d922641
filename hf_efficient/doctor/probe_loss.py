"""Does the head use num_items_in_batch, and what does stock Trainer make of its loss? Found by trying."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from typing import Any

from hf_efficient.doctor.probe_answer import Answer, NotProbedError
from hf_efficient.doctor.probe_subject import Subject
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN
from hf_efficient.reading.setup import Setup

TRIED_STEPS = 4
"""Accumulation steps where the files leave them unknown."""
MISCOUNT = 0.05
"""So far off is what a head and Trainer may count differently, such as the first token of each row."""
OWN = ("compute_loss", "training_step", "get_batch_samples", "_get_num_items_in_batch")
MENDS = ("exact_accumulation",)


def loss(subject: Subject) -> Iterator[Answer]:
    """Yield what stock Trainer multiplies the loss and the gradient of this head by."""
    setup = subject.setup
    if setup.trainer is None:
        return
    attributes, on_instance = _changes(setup)
    knob = setup.effective.get("gradient_accumulation_steps")
    known = knob is not None and isinstance(knob.value, int) and knob.value > 0
    steps: int = knob.value if known and knob is not None else TRIED_STEPS
    verdict, stock = _try(subject, steps, attributes, on_instance)
    if verdict.counter is None and not verdict.problem:
        raise NotProbedError(f"the loss of {subject.head} could not be tried, {verdict.untried}")
    at = knob.place if knob is not None and knob.place.file else setup.trainer.place
    yield Answer(_finding(subject, (verdict, stock), steps=steps if known else 0, at=at), "loss", _is_off(stock.factor))


def _is_off(factor: float) -> bool:
    return abs(factor - 1) > MISCOUNT


def _finding(subject: Subject, tried: tuple[Any, Any], *, steps: int, at: Place) -> Finding:
    verdict, stock = tried
    uses = "divides by num_items_in_batch" if verdict.divides else "drops num_items_in_batch"
    on = f"gradient_accumulation_steps={steps or TRIED_STEPS}{'' if steps else ' (to try it)'}"
    if _is_off(stock.factor):
        what = f"its loss {uses}, and with {on} Trainer multiplies loss and gradient by {stock.factor:g}"
        return _scaled(f"Probed on {subject.said}: {what}", stock.factor, sure=bool(steps), at=at)
    if verdict.problem or not (stock.exact or steps == 1):
        why = verdict.problem or (
            "it counts its items differently from Trainer"
            if verdict.divides
            else "each micro-batch's mean counts the same, whatever its number of items"
        )
        return info(
            f"Probed on {subject.said}: its loss {uses}, and with {on} Trainer does not add it up over the steps, "
            f"but is not exact either (times {stock.factor:.4g} on these rows)",
            why=f"{why[0].upper()}{why[1:]}; where rows have unequally many labels that differs from one big batch.",
            fix="Call hf_efficient's exact_accumulation(trainer) before trainer.train() if it should be exact.",
            at=at,
        ).coded("probe-loss-scale")
    return info(
        f"Probed: fine. The loss of {subject.said} {uses}, and with {on} Trainer multiplies it by 1",
        why="One update by accumulation is then the same as one by a big batch.",
        fix="Nothing has to be changed."
        if verdict.divides or steps > 1
        else "Nothing has to be changed; accumulation would need loss_is_scaled_for_ga = False or exact_accumulation"
        "(trainer).",
        at=at,
    ).coded("probe-loss-scale")


def _scaled(what: str, factor: float, *, sure: bool, at: Place) -> Finding:
    """Return the finding of a loss that accumulation scales; a warning where the number of steps is not known."""
    twice = " (it is divided by the steps a second time)" if factor < 1 else ""
    return (error if sure else warning)(
        f"{what}{twice}",
        why=f"The update is {factor:g} times that of one big batch: learning rate, clipping and the logged loss all "
        "mean something else than without accumulation.",
        fix="Remove loss_is_scaled_for_ga = False and model_accepts_loss_kwargs = False: this head needs neither."
        if factor < 1
        else "Set `loss_is_scaled_for_ga = False` on a subclass of Trainer (or trainer.model_accepts_loss_kwargs = "
        "False), or call hf_efficient's exact_accumulation(trainer) before trainer.train(), which also weighs "
        "micro-batches by their items.",
        at=at,
    ).coded("probe-loss-scale")


def _try(subject: Subject, steps: int, attributes: dict[str, Any], on_instance: dict[str, Any]) -> tuple[Any, Any]:
    """Return the verdict on the loss and what a stock Trainer with these changes does with it."""
    from transformers import Trainer, TrainingArguments

    from hf_efficient.train.stock import try_trainer

    model = subject.tiny()
    smoothing = (subject.setup.trainer or NOTHING).number("label_smoothing_factor")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True, gradient_accumulation_steps=steps,
            label_smoothing_factor=smoothing if isinstance(smoothing, int | float) else 0.0,
        )  # fmt: skip
        trainer = type("Tried", (Trainer,), attributes)(model=model, args=arguments)
        for name, value in on_instance.items():
            setattr(trainer, name, value)
        return try_trainer(trainer, subject.batches(model, 4, 2))


def _changes(setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the script changes of Trainer: attributes of its subclass, and of the object.

    Raises NotProbedError for a loss of the user's own, which would have to be executed.
    """
    trainer, script = setup.trainer or NOTHING, setup.script
    if setup.sft is not None and setup.sft.get("loss_type") not in (None, "nll", "chunked_nll"):
        raise NotProbedError("SFTTrainer computes another loss than the model's own")
    if trainer.get("label_smoothing_factor") is UNKNOWN:
        raise NotProbedError("label_smoothing_factor is not known")
    if script is None:
        return {}, {}
    if script.named(*MENDS):
        raise NotProbedError("exact_accumulation(trainer) mends it where the script runs")
    attributes: dict[str, Any] = {}
    for call in (call for call in script.calls if _is_trainer(script, call.method)):
        if call.keywords.get("compute_loss_func") is not None:
            raise NotProbedError("compute_loss_func is the script's own, which is not executed")
        for owner in _lineage(script, call.method):
            attributes = _attributes(script, owner) | attributes
    return attributes, _assigned(script)


def _is_trainer(script: Script, name: str, depth: int = 0) -> bool:
    """Say whether a name ends as Trainer's classes do, or is a class of the script that comes from one."""
    bases = script.classes[name].bases if name in script.classes and depth < 10 else []
    names = [ast.unparse(base).rpartition(".")[2] for base in bases]
    return name.endswith("Trainer") or any(_is_trainer(script, base, depth + 1) for base in names)


def _lineage(script: Script, name: str, depth: int = 0) -> Iterator[ast.ClassDef]:
    """Yield a class of the script and its bases there. Raises NotProbedError for a Trainer with a loss of its own."""
    node = script.classes.get(name)
    if node is None:
        if name not in ("Trainer", "Seq2SeqTrainer", "SFTTrainer"):
            raise NotProbedError(f"{name} may compute a loss of its own")
        return
    yield node
    for base in node.bases if depth < 10 else ():
        yield from _lineage(script, ast.unparse(base).rpartition(".")[2], depth + 1)


def _attributes(script: Script, node: ast.ClassDef) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name in OWN:
            raise NotProbedError(f"{node.name}.{part.name} is the script's own, which is not executed")
        for name, value in _pairs(part):
            if name == "loss_is_scaled_for_ga":
                found[name] = script.value(value)
    if found.get("loss_is_scaled_for_ga") is UNKNOWN:
        raise NotProbedError(f"{node.name}.loss_is_scaled_for_ga is not known")
    return found


def _pairs(part: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(part, ast.Assign):
        yield from ((ast.unparse(target), part.value) for target in part.targets)
    elif isinstance(part, ast.AnnAssign) and part.value is not None:
        yield ast.unparse(part.target), part.value


def _assigned(script: Script) -> dict[str, Any]:
    """Return what the script sets on its trainer: `trainer.model_accepts_loss_kwargs = False`."""
    found: dict[str, Any] = {}
    for node in ast.walk(script.tree):
        for target, value in _pairs(node) if isinstance(node, ast.stmt) else ():
            name = target.rpartition(".")[2]
            if "." in target and name in ("model_accepts_loss_kwargs", "loss_is_scaled_for_ga"):
                found[name] = script.value(value)
                if found[name] is UNKNOWN:
                    raise NotProbedError(f"{target} is not known")
    return found

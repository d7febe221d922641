"""Mistakes between the head of a model and the way stock Trainer scales an accumulated loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hf_efficient.checks import heads
from hf_efficient.checks.check import check
from hf_efficient.checks.loss_calls import loss_verdict
from hf_efficient.checks.own_trainer import Built, assigned, built, divides_by_items
from hf_efficient.finding import Finding, Place, error, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

STEPS = "gradient_accumulation_steps"
SCALED = "loss_is_scaled_for_ga"
ACCEPTS = "model_accepts_loss_kwargs"
MOSTLY = {
    "AutoModelForSequenceClassification": "122 of 127",
    "AutoModelForTokenClassification": "101 of 102",
    "AutoModelForMultipleChoice": "35 of 35",
    "AutoModelForNextSentencePrediction": "5 of 5",
    "AutoModelForMaskedLM": "45 of 51",
    "AutoModelForAudioClassification": "11 of 12",
    "AutoModelForSemanticSegmentation": "10 of 10",
}
"""Auto classes nearly all of whose heads drop the number, counted in transformers 5.24 (tests/doctor/test_heads.py)."""
CAUSAL = {"AutoModelForCausalLM": "173 of 196"}
"""Auto classes nearly all of whose heads divide by the number, counted likewise."""
MENDS = ("exact_accumulation",)


class Head(NamedTuple):
    """A model's class as well as it is known, and what becomes of its loss."""

    name: str
    verdict: str
    share: str = ""
    """How many of an Auto class's heads are so, where the one that it builds is not known."""


def head(model: Settings, script: Script | None) -> Head:
    """Return the head that is trained; its verdict is empty where it is not known."""
    name = model.text("class").rpartition(".")[2]
    if script is not None and name in script.classes:
        return Head(name, _own_verdict(script, name))
    problem = model.text("problem_type")
    if model.get("num_labels") == 1:
        problem = problem or "regression"
    if name.startswith("AutoModel"):
        known = heads.auto_class(name, model.text("model_type")) or model.text("architecture")
        if known:
            return Head(known, heads.verdict(known, problem))
        return (
            Head(name, heads.DROPS, MOSTLY[name]) if name in MOSTLY and not model.text("model_type") else Head(name, "")
        )
    return Head(name, heads.verdict(name, problem))


def _own_verdict(script: Script, name: str) -> str:
    """Judge a module that the script defines, where its forward stands in it."""
    forward = script.functions.get(f"{name}.forward")
    if forward is None:
        return ""
    if forward.args.kwarg is None:
        return heads.DIVIDED
    says = loss_verdict(forward, loss_uses=None)
    return heads.DROPS if says is False else ""


def steps(trainer: Settings) -> Any:
    """Return the accumulation steps where they are known to be several, else UNKNOWN."""
    value = trainer.number(STEPS)
    return value if value > 1 else UNKNOWN


def plain(setup: Setup) -> bool | None:
    """Say whether stock Trainer computes the loss: no compute_loss, no compute_loss_func, no remedy; None: unknown."""
    script = setup.script
    if script is None:
        return setup.sft is None
    trainers = built(script)
    if not trainers or not all(one.stock for one in trainers):
        return None
    return not any(_touched(one) for one in trainers) and not script.named(*MENDS)


def _touched(one: Built) -> bool:
    said = one.call.settings()
    own = any(one.method(name) for name in ("compute_loss", "training_step", "get_batch_samples"))
    return own or said.open or said.said("compute_loss_func") or one.base.endswith("SFTTrainer")


@check({"transformers": ">=5.19"}, seen="ran on CPU")
def accumulated_loss_not_divided(setup: Setup, trainer: Settings, model: Settings) -> Iterator[Finding]:
    """Find a model whose loss stock Trainer adds up over the accumulation steps and divides by nothing.

    Trainer takes a model whose forward has **kwargs for one that divides its loss by num_items_in_batch, the labels of
    the whole update, and leaves the loss as it is (Trainer.training_step). Most classification, masked-LM and
    encoder-decoder heads take **kwargs and drop the number: their loss is the mean of each micro-batch, so that
    gradient and logged loss are gradient_accumulation_steps times too large, which clipping and learning rate feel.
    Causal LMs are right; so are question answering heads (their batches have no "labels"), forwards without
    **kwargs, classes with accepts_loss_kwargs=False and label smoothing: there Trainer divides.
    """
    count = steps(trainer)
    if not count or not plain(setup) or not trainer.off("label_smoothing_factor"):
        return
    script = setup.script
    if script is not None and any(
        assigned(script, key) is not None for key in (SCALED, ACCEPTS, "accepts_loss_kwargs")
    ):
        return
    found = head(model, script)
    if found.verdict != heads.DROPS:
        return
    place = trainer.where(STEPS)
    if found.share:
        yield warning(
            f"{found.name} with {STEPS}={count}, stock Trainer: {found.share} of its heads drop num_items_in_batch",
            why=f"Such a head takes **kwargs, so Trainer leaves its loss undivided: loss and gradient are {count} "
            "times too large. Which head the checkpoint has cannot be seen here.",
            fix=_remedy(count),
            at=place,
        )
        return
    yield error(
        f"{found.name} drops num_items_in_batch, with {STEPS}={count} under stock Trainer",
        why=f"Its forward takes **kwargs, so Trainer takes the loss for divided already; it is a plain mean of each "
        f"micro-batch: loss and gradient are {count} times too large.",
        fix=_remedy(count),
        at=place,
    )


def _remedy(count: Any) -> str:
    return (
        f"Subclass Trainer with the class attribute {SCALED} = False (or set trainer.{ACCEPTS} = False): Trainer then "
        f"divides by {count}; exact where the rows have different numbers of labels: hf_efficient.exact_accumulation"
        "(trainer) before trainer.train()."
    )


@check({"transformers": ">=5.19"}, seen="ran on CPU")
def accumulated_loss_divided_twice(
    setup: Setup, trainer: Settings, script: Script, model: Settings = NOTHING
) -> Iterator[Finding]:
    """Find loss_is_scaled_for_ga = False where the loss is divided by num_items_in_batch already.

    The attribute makes Trainer divide by gradient_accumulation_steps (Trainer.training_step). It is the remedy for
    heads that drop num_items_in_batch; a causal LM, or a compute_loss that divides a sum by num_items_in_batch, has
    the whole update in its divisor: loss and gradient become 1/gradient_accumulation_steps of what was asked for.
    """
    count = steps(trainer)
    if not count or assigned(script, SCALED) is not False or script.named(*MENDS):
        return
    if assigned(script, ACCEPTS) is not None or assigned(script, "accepts_loss_kwargs") is not None:
        return
    for one in built(script):
        method = one.method("compute_loss")
        if method is not None and divides_by_items(method):
            yield _twice(count, "compute_loss divides by num_items_in_batch", script.place(method))
        elif method is None and one.base.endswith("SFTTrainer"):
            yield _twice(count, "SFTTrainer divides its loss by num_items_in_batch", one.call.place)
        elif plain(setup) and (found := _dividing(model, script)):
            yield _twice(count, f"{found} its loss by num_items_in_batch", one.call.place)


def _dividing(model: Settings, script: Script) -> str:
    """Return the words for a head that divides by num_items_in_batch, or for an Auto class whose heads do so."""
    found = head(model, script)
    share = CAUSAL.get(found.name) if not found.verdict and not model.text("model_type") else None
    if share:
        return f"{found.name} ({share} of its heads) divides"
    return f"{found.name} divides" if found.verdict == heads.USES else ""


def _twice(count: Any, what: str, at: Place) -> Finding:
    return error(
        f"{SCALED} = False, but {what}; {STEPS}={count}",
        why=f"The loss is divided twice, by the labels of the whole update and by {count}: loss and gradient are "
        f"{1 / count:.3g} of what they should be.",
        fix=f"Leave {SCALED} out (or set it to True): the division by num_items_in_batch is the right one.",
        at=at,
    )


@check({"transformers": ">=5.19"}, seen="ran on CPU")
def router_loss_counted_per_micro_batch(setup: Setup, trainer: Settings, model: Settings) -> Iterator[Finding]:
    """Find a mixture of experts that trains its balancing loss under accumulation.

    With output_router_logits=True the model adds an auxiliary loss to its language model loss. Only the latter is
    divided by num_items_in_batch; the auxiliary one is a mean of each micro-batch, and stock Trainer adds it up
    gradient_accumulation_steps times. Without output_router_logits, or without accumulation, there is nothing to see.
    """
    count, key = steps(trainer), "output_router_logits"
    config = model.part("config")
    on = model.on(key) or (not model.said(key) and config.on(key))
    if not count or not on or not plain(setup) or head(model, setup.script).verdict != heads.USES:
        return
    coefficient = "router_aux_loss_coef"
    yield warning(
        f"{key}=True with {STEPS}={count} under stock Trainer",
        why="The experts' balancing loss is added once per micro-batch and not divided by num_items_in_batch: it "
        f"weighs {count} times what {coefficient} says.",
        fix=f"Divide {coefficient} by {count}, or accumulate less: larger per_device_train_batch_size and {STEPS}=1.",
        at=model.where(key) if model.said(key) else model.where("config"),
    )

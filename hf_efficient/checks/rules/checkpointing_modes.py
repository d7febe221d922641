"""Checkpointing in eval mode, in which transformers' layers do not checkpoint."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.checkpointing import asked
from hf_efficient.finding import Finding, Place, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.setup import Setup

WHY = (
    "transformers checkpoints a layer only where its training flag is set, so in eval mode all activations are kept:"
    " checkpointing does nothing, and dropout is off."
)
FIX = "Call model.train() before each pass over the training data; for eval behaviour set the dropout rates to 0"
" instead."


DROPS_OUT = re.compile(r"bert|electra|gpt2|gpt-2|\bt5|/t5|flan-t5|mt5|\bbart|/bart|mbart|pegasus|xlnet|mpnet")
"""Models that have dropout of 0.1 by default, by their names."""


class Mode(NamedTuple):
    """A call that puts the model into training mode, or out of it."""

    train: bool
    line: int
    call: Call


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def checkpointing_in_eval_mode(setup: Setup) -> Iterator[Finding]:
    """Find a hand-written loop that trains a checkpointed model in eval mode.

    A layer checkpoints only while its own training flag is set (transformers/modeling_layers.py,
    GradientCheckpointingLayer). from_pretrained returns the model in eval mode, get_peft_model leaves its layers so,
    and accelerate's prepare does not change it: a loop needs model.train() before it, and again after each evaluation
    that called model.eval(). Trainer calls model.train() in every step, so with it only a compute_loss that calls
    model.eval() is meant. Modules of one's own that call torch.utils.checkpoint themselves do not look at the flag.
    """
    found, model, script = asked(setup), setup.model, setup.script
    if found is None or model is None:
        return
    if model.get("training") is False and script is None:
        yield warning(f"{found.by}, but the model is in eval mode (training: false)", why=WHY, fix=FIX, at=found.place)
        return
    if script is None:
        return
    loops = script.training_loops if setup.trainer is None else []
    for loop in loops:
        yield from _judged(setup, script, loop, found.by)
    for call in script.named("eval") if setup.trainer is not None else []:
        names = [
            one.receiver for one in script.named("train") if one.function == call.function and one.place > call.place
        ]
        if call.function == "compute_loss" and call.receiver in ("model", "self.model") and call.receiver not in names:
            yield warning(f"compute_loss calls {call.text} under {found.by}", why=WHY, fix=FIX, at=call.place)


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def training_in_eval_mode(setup: Setup) -> Iterator[Finding]:
    """Find a hand-written loop that trains a model as from_pretrained returns it: in eval mode.

    from_pretrained ends with model.eval(), and neither get_peft_model nor accelerate's prepare changes that, so dropout
    does nothing in a loop that never calls model.train(). It is told for models whose configuration has dropout above 0
    by default, BERT's kin, GPT-2 and T5 among them; newer decoders have none, and nothing is lost. With checkpointing
    see checkpointing-in-eval-mode. Trainer calls model.train() itself.
    """
    script = setup.script
    if script is None or setup.trainer is not None or asked(setup) is not None or not _from_pretrained(setup):
        return
    trains = any(call.method == "train" and call.receiver for call in script.calls) or ".training =" in script.source
    if not trains and script.training_loops and DROPS_OUT.search(_kind(setup)):
        yield info(
            "No model.train() before the training loop, and from_pretrained returns the model in eval mode",
            why="dropout is off for the whole training, in silence.",
            fix="Call model.train() before each pass over the training data.",
            at=Place(script.file, getattr(script.training_loops[0], "lineno", 0)),
        )


def _kind(setup: Setup) -> str:
    model = setup.model
    told = [model.text(key) for key in ("model_type", "class", "name")] if model is not None else []
    return " ".join(told).lower()


def _judged(setup: Setup, script: Script, loop: ast.AST, by: str) -> Iterator[Finding]:
    backward = next(
        call for call in script.calls if call.method == "backward" and call.loops and call.loops[-1] is loop
    )
    called = {call.name for call in script.inside(loop)}
    modes = [mode for mode in _modes(script, called) if mode.call.function == backward.function]
    line, outer = backward.place.line, backward.loops[0]
    before = [mode for mode in modes if mode.line < line]
    around = [mode for mode in modes if outer in mode.call.around]
    again = ([mode for mode in around if mode.line < line] or around)[-1:]
    for state, when in ((before[-1:], "before the loop"), (again, "in the loop, and not back into training mode")):
        if state and not state[0].train:
            text = f"The model is put into eval mode {when} ({state[0].call.text}), with {by}"
            yield warning(text, why=WHY, fix=FIX, at=state[0].call.place)
            return
    anywhere = any(call.receiver for call in script.named("train"))
    if not modes and not anywhere and _from_pretrained(setup):
        yield warning(
            f"No model.train() before the training loop, with {by}: from_pretrained returns the model in eval mode",
            why=WHY,
            fix=FIX,
            at=Place(script.file, getattr(loop, "lineno", 0)),
        )


def _modes(script: Script, names: set[str]) -> list[Mode]:
    """Return the changes of mode of what these names are, those of the script's own functions included."""
    found = []
    for call in script.calls:
        own = _own(call)
        if own is not None and call.receiver in names:
            found.append(Mode(own, call.place.line, call))
        function = script.functions.get(call.name)
        passed = {ast.unparse(arg) for arg in [*call.node.args, *(k.value for k in call.node.keywords)]}
        if function is not None and passed & names:
            inner = [one for c in script.inside(function) if (one := _own(c)) is not None]
            found += [Mode(inner[-1], call.place.line, call)] if inner else []
    return sorted(found, key=lambda mode: mode.line)


def _own(call: Call) -> bool | None:
    """Return True for `.train()`, False for `.eval()` and `.train(False)`, None for another call."""
    if call.method == "eval" and call.receiver:
        return False
    if call.method != "train" or not call.receiver:
        return None
    return (call.args[0] if call.args else call.keywords.get("mode", True)) is not False


def _from_pretrained(setup: Setup) -> bool:
    """Is the model surely loaded by from_pretrained, and no engine wraps it that could change its mode?"""
    script, model = setup.script, setup.model
    loads = [call for call in script.named("from_pretrained") if "Model" in call.receiver] if script is not None else []
    own = model is None or model.on("own_module") or model.open
    return bool(loads) and not own and setup.zero is None and setup.fsdp is None

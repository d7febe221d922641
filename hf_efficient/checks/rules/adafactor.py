"""Mistakes in the step sizes of transformers' Adafactor: lr, relative_step and the schedule that goes with them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, Place, error
from hf_efficient.reading.flow import Around
from hf_efficient.reading.lineage import argument, inside, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings


def adafactor_calls(script: Script) -> list[Call]:
    """Return the calls of transformers' Adafactor; torch's and optimi's are others."""
    return [call for call in script.calls if call.method == "Adafactor" and call.name.startswith("transformers.")]


def _relative(values: Mapping[str, Any], open: bool) -> tuple[Any, Any, Any]:
    """Return lr, relative_step and warmup_init as Adafactor takes them."""
    unknown = UNKNOWN if open else None
    step = values.get("relative_step", UNKNOWN if open else True)
    return values.get("lr", unknown), step, values.get("warmup_init", UNKNOWN if open else False)


@check({"transformers": ">=4.0"}, seen="ran on CPU")
def adafactor_lr_with_relative_step(script: Script | None = None, optimizer: Settings = NOTHING) -> Iterator[Finding]:
    """Find an lr beside relative_step=True of transformers' Adafactor, or warmup_init=True without relative_step.

    relative_step is True by default, so `Adafactor(params, lr=1e-3)` alone raises "Cannot combine manual `lr` and
    `relative_step=True` options"; warmup_init=True wants relative_step=True.
    """
    made: list[tuple[Mapping[str, Any], bool, Place]] = (
        [(call.keywords | _second(call), call.open, call.place) for call in adafactor_calls(script)] if script else []
    )
    made += _class_and_keywords(script) if script is not None else []
    kind = optimizer.text("class")
    if script is None and kind in ("Adafactor", "transformers.Adafactor", "transformers.optimization.Adafactor"):
        made.append((optimizer.values, optimizer.open, optimizer.place))
    for values, open, place in made:
        lr, relative, warmup = _relative(values, open)
        if lr is not None and lr is not UNKNOWN and relative is True:
            yield error(
                f"Adafactor(lr={lr}, relative_step=True)" + ("" if "relative_step" in values else " (its default)"),
                why="Adafactor computes its own step sizes with relative_step and refuses an lr beside it: ValueError.",
                fix=f"Write lr={lr}, relative_step=False, scale_parameter=False, warmup_init=False; or lr=None with "
                "relative_step=True and AdafactorSchedule(optimizer).",
                at=place,
            )
        elif warmup is True and relative is False:
            yield error(
                "Adafactor(warmup_init=True, relative_step=False)",
                why="warmup_init shapes the relative steps, and Adafactor refuses it without them: ValueError.",
                fix="Set warmup_init=False, or relative_step=True with lr=None.",
                at=place,
            )


def _class_and_keywords(script: Script) -> list[tuple[Mapping[str, Any], bool, Place]]:
    """Return the keywords that Trainer is to build an Adafactor with: optimizer_cls_and_kwargs=(Adafactor, {...})."""
    found: list[tuple[Mapping[str, Any], bool, Place]] = []
    for call in script.calls:
        pair = call.keywords.get("optimizer_cls_and_kwargs")
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], dict):
            name = str(pair[0])
            if name.startswith("transformers.") and name.endswith(".Adafactor"):
                found.append((pair[1], False, call.place))
    return found


def _second(call: Call) -> dict[str, Any]:
    return {"lr": call.args[1]} if len(call.args) > 1 else {}


@check({"transformers": ">=4.0"}, seen="ran on CPU")
def adafactor_without_its_schedule(script: Script) -> Iterator[Finding]:
    """Find Adafactor with lr=None handed to a Trainer without AdafactorSchedule.

    Trainer makes its own schedule for it, of an optimizer whose lr is None: "unsupported operand type(s) for *:
    'NoneType' and ...". AdafactorSchedule hands the optimizer's own steps to the log. Without Trainer, or with
    optim="adafactor" (fixed lr), there is nothing to see.
    """
    for trainer in script.calls:
        node = argument(trainer, "optimizers")
        if not trainer.method.endswith("Trainer") or node is None:
            continue
        for pair, around in lineage(script, node, inside(trainer)).literals:
            parts = pair.elts if isinstance(pair, ast.Tuple | ast.List) and len(pair.elts) == 2 else []
            made = lineage(script, parts[0], around).ends if parts else []
            wrong = _other_schedule(script, parts[1], around) if parts else ""
            if wrong and len(made) == 1 and _is_relative(script, made[0]):
                yield _without_schedule(trainer, ast.unparse(parts[0]), wrong, made[0].place)


def _is_relative(script: Script, call: Call) -> bool:
    lr, step, _ = _relative(call.keywords | _second(call), call.open)
    return call in adafactor_calls(script) and lr is None and step is True


def _other_schedule(script: Script, node: ast.expr, around: Around) -> str:
    """Return what stands in the place of AdafactorSchedule, or an empty string where that cannot be known."""
    if script.value(node, around) is None:
        return "None"
    made = lineage(script, node, around).ends
    known = [call for call in made if "_schedule" in call.method or call.name.startswith("torch.optim.lr_scheduler.")]
    return f"{made[0].method}(...)" if made and len(known) == len(made) else ""


def _without_schedule(trainer: Call, optimizer: str, schedule: str, at: Place) -> Finding:
    short = optimizer if optimizer.isidentifier() else "optimizer"
    own = "The Trainer makes a linear schedule of" if schedule == "None" else f"{schedule} is a schedule of"
    return error(
        f"Adafactor with lr=None in {trainer.method}(optimizers=({short}, {schedule}))",
        why=f"{own} an optimizer without lr: TypeError, None times a number.",
        fix=f"Pass optimizers=({short}, AdafactorSchedule({short})), or drop it and set "
        'optim="adafactor" with learning_rate (relative_step=False).',
        at=at,
    )

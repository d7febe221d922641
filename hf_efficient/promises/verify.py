"""Does each trick keep its promise on this model? A few updates with it and without it say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hf_efficient.emit.head import NotMadeForError, require_head
from hf_efficient.emit.here import training_machine
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.presets import Preset
from hf_efficient.promises.apart import apart
from hf_efficient.promises.doors import Loop, MakeTrainer, by_loop, by_trainer
from hf_efficient.promises.judge import STOPS, Verdict, judge, promised
from hf_efficient.promises.subject import Rows, Subject
from hf_efficient.promises.trial import Trial, samples_wanted
from hf_efficient.trick import Trick

if TYPE_CHECKING:
    from torch import nn

WHOLE = "the whole plan"
NOTHING = "no trick"


def verify(
    *names: str | Trick | Preset,
    model: str | nn.Module,
    data: str | Rows | None = None,
    without: Sequence[str] = (),
    door: Literal["trainer", "loop"] = "trainer",
    trainer: MakeTrainer | None = None,
    loop: Loop | None = None,
    collator: Any = None,
    tell: Callable[[Verdict], Any] | None = None,
) -> list[Verdict]:
    """Return a verdict for the training without tricks, for each trick of the plan, and for the whole plan.

    `model` is a Hub id or a folder, of which a tiny model of the same structure is made, unless `data` (a file of
    texts, or rows of the model's inputs) is given: then the model itself is trained on it. A module of yours needs rows
    and is copied. Each run trains an epoch of a few updates, the last of them uneven, and puts the weights back after
    each; it is held against one batch per update by torch alone, without dropout and with the model's own.

    `trainer` makes your Trainer from the keywords model, args, data_collator and train_dataset; `loop` is your own,
    `loop(plan, model, rows, collate)`, for one epoch over rows in their order; `collator` takes the place of ours;
    `tell` is called with each verdict when it is there.

    Raises ValueError for names, models and data that cannot be.
    """
    if door not in ("trainer", "loop") or (trainer and (loop or door == "loop")):
        raise ValueError(f"One door at a time, 'trainer' or 'loop': door is {door!r}; `trainer` and `loop` are yours.")
    machine = training_machine()
    plan = make_plan(*names, without=without, machine=machine)
    own = trainer or loop
    opened = by_loop(loop) if loop or door == "loop" else by_trainer(trainer)
    wanted = max(samples_wanted(part) for part in (Plan(), plan, *map(make_plan, plan.tricks)))
    with _subject(model, data, collator, wanted) as subject:
        trial, found = Trial(subject, opened, ours=own is None), []
        for verdict in verdicts(plan, trial, machine):
            if tell:
                tell(verdict)
            found.append(verdict)
        return found


def verdicts(plan: Plan, trial: Trial, machine: Machine) -> Iterator[Verdict]:
    """Yield the verdicts of a plan on a subject that is there already, one by one."""
    nothing = judge(NOTHING, Plan(), trial)
    if nothing.why.startswith(STOPS) and not trial.ours:
        raise ValueError(f"What you passed cannot train {trial.subject.name} without any trick ({nothing.why}).")
    if nothing.why.startswith(STOPS):
        raise ValueError(
            f"{trial.subject.name} cannot be trained here without any trick ({nothing.why}): without data of "
            "yours a tiny model is trained on made rows; give the model's own rows instead."
        )
    yield replace(nothing, why=f"{type(trial.head).__name__}: {nothing.why}")
    able: list[Trick] = []
    for trick in plan.tricks:
        solo = make_plan(trick)
        if excuse := _excuse(trick, solo, machine, trial):
            yield excuse
            continue
        found = judge(trick.name, solo, trial)
        able += [trick] if found.verdict != "does not apply" else []
        yield found
    if len(plan.tricks) > 1:
        yield _whole(plan, able, trial)


def _whole(plan: Plan, able: Sequence[Trick], trial: Trial) -> Verdict:
    left_out = [trick for trick in plan.tricks if trick not in able]
    for trick in left_out:
        plan = plan.remove(trick)
    if not able:
        why = "none of its tricks can be tried on this machine and this model"
        return Verdict(WHOLE, promised(left_out), "not exercised here", why=why)
    found = judge(WHOLE, plan, trial)
    if not left_out:
        return found
    names = ", ".join(trick.name for trick in left_out)
    return Verdict(**found.row() | {"why": f"{found.why}; tried without {names}"})


def _excuse(trick: Trick, plan: Plan, machine: Machine, trial: Trial) -> Verdict | None:
    """Return the verdict of a trick that cannot be tried: not made for this head, or not for this machine."""
    try:
        require_head(plan, trial.head)
    except NotMadeForError as error:
        return Verdict(trick.name, trick.numerics, "does not apply", why=str(error).rstrip("."))
    if unmet := plan.unmet(machine):
        return Verdict(trick.name, trick.numerics, "not exercised here", why=unmet[0])
    if plan.engine != "NO":
        why = f"{plan.engine} trains in processes of its own, which a launcher starts"
        return Verdict(trick.name, trick.numerics, "not exercised here", why=why)
    return None


@contextmanager
def _subject(model: Any, data: Any, collator: Any, wanted: int) -> Iterator[Subject]:
    from hf_efficient.promises.samples import tiny_subject, your_subject
    from hf_efficient.promises.tiny import load_config

    if isinstance(model, str) and data is None:
        with apart():
            config = load_config(model)
        with tiny_subject(config, model, wanted, collator=collator) as subject:
            yield subject
    else:
        yield your_subject(model, data, wanted, collator=collator)

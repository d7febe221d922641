"""What only the real object can show, on a tiny model made from the configuration: `doctor --probe`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hf_efficient.checks.run import in_order
from hf_efficient.doctor.probe_answer import TOPICS, Answer, NotProbedError
from hf_efficient.doctor.probe_data import shards
from hf_efficient.doctor.probe_dtypes import dtypes
from hf_efficient.doctor.probe_gradients import gradients
from hf_efficient.doctor.probe_loss import loss
from hf_efficient.doctor.probe_subject import Subject, subject_of
from hf_efficient.doctor.probe_support import support
from hf_efficient.doctor.silence import silenced
from hf_efficient.finding import LEVELS, Finding, Place, info
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import listed, one_sentence

if TYPE_CHECKING:
    from hf_efficient.doctor.report import Report

T = TypeVar("T")
Probe = Callable[[Subject], Iterator[Answer]]
MODEL_PROBES: dict[str, Probe] = {"loss": loss, "support": support, "dtypes": dtypes, "gradients": gradients}
SECONDS = 8.0
"""For runs besides the first, which takes 2 to 4 after torch and transformers have started; then no probe is begun."""


def probed(report: Report) -> Report:
    """Return the report with what tiny models of its runs show, and without what these refute.

    A static finding is taken out where every run was probed on its subject and is fine. Where it is confirmed it stays,
    and what the object showed is told as an info. No weights are loaded, nothing of the user's is executed, and the
    state of the process stays as it was.
    """
    from hf_efficient.promises.apart import apart

    with apart():
        first, *others = _different(report.runs) or [Setup()]
        answers = [_answers(first, math.inf)]
        until = time.monotonic() + SECONDS
        answers += [_answers(run, until) for run in others]
    kept = [finding for finding in report.findings if not _refuted(finding, answers)]
    found = [_told(answer.finding, answer, kept) for many in answers for answer in many if answer.finding]
    files = list(dict.fromkeys(file for run in report.runs for file in run.files))
    left, quiet = silenced(found, files, [Path(file) for file in files])
    return replace(report, findings=tuple(in_order([*kept, *left])), silenced=(*report.silenced, *quiet))


def _answers(run: Setup, until: float) -> list[Answer]:
    """Return what every probe answers on one run; probes that could not be made share a sentence for each reason."""
    untried: dict[str, list[str]] = {}
    found = _tried("shards", partial(shards, run), untried)
    subject = _subject(run, untried) if _about_a_model(run) else None
    for name, probe in MODEL_PROBES.items():
        if subject is None:
            break
        if time.monotonic() > until:
            untried.setdefault(f"the probes have taken {SECONDS:.0f} seconds already", []).append(name)
        else:
            found += _tried(name, partial(probe, subject), untried)
    return list(dict.fromkeys([*found, *(_not_probed(names, why, run) for why, names in untried.items())]))


def _about_a_model(run: Setup) -> bool:
    """Say whether a run trains at all: a launch file alone has no model to be asked for."""
    return any(part is not None for part in (run.trainer, run.accelerator, run.model, run.peft, run.script))


def _subject(run: Setup, untried: dict[str, list[str]]) -> Subject | None:
    found: list[Subject] = _tried("model", lambda: [subject_of(run)], untried)
    return found[0] if found else None


def _tried(name: str, probe: Callable[[], Iterable[T]], untried: dict[str, list[str]]) -> list[T]:
    """Return a probe's answers; where it cannot be made, note why."""
    try:
        return list(probe())
    except NotProbedError as error:
        why = str(error)
    except Exception as error:  # whatever configurations, layers, adapters and readers of data raise
        why = one_sentence(error)[:300]
    untried.setdefault(why.rstrip("."), []).append(name)
    return []


def _not_probed(names: Sequence[str], why: str, run: Setup) -> Answer:
    name = run.model.text("name") if run.model is not None else ""
    at = run.model or run.trainer or run.accelerator or run.peft
    return Answer(
        info(
            f"Not probed, {listed(TOPICS[name].about for name in names)}: {why}",
            why="What the files say was checked all the same; only the proof on a real object is missing.",
            fix=f"Name a model that transformers has with --model, such as --model {name or 'FOLDER'} (its "
            "config.json is enough)."
            if "model" in names
            else "Nothing has to be changed for that.",
            at=at.place if at is not None and at.place.file else Place(next(iter(run.files), "")),
        ).coded("probe-untried")
    )


def _different(runs: Sequence[Setup]) -> list[Setup]:
    """Return the runs that differ in what a probe looks at."""
    found: dict[str, Setup] = {}
    for run in runs:
        parts = (
            run.trainer,
            run.sft,
            run.accelerator,
            run.model,
            run.peft,
            run.data,
            run.dataloader,
            run.zero,
            run.fsdp,
        )
        knobs = [(name, str(knob.value)) for name, knob in run.effective.items()]
        found.setdefault(repr((parts, knobs, id(run.script) if run.script else None)), run)
    return list(found.values())


def _refuted(finding: Finding, answers: Sequence[Sequence[Answer]]) -> bool:
    """Say whether every run was probed on what a finding is about, and none has the fault.

    An info that leaves the fault open goes where a probe has found it.
    """
    topic = next((name for name, topic in TOPICS.items() if re.fullmatch(topic.codes, finding.code)), "")
    judged = [[one.fault for one in many if one.topic == topic and one.fault is not None] for many in answers]
    if not topic or not judged or not all(judged):
        return False
    if finding.level == "info":
        return any(fault for many in judged for fault in many)
    return not any(fault for many in judged for fault in many)


def _told(found: Finding, answer: Answer, kept: Sequence[Finding]) -> Finding:
    """Return the finding of a probe; an info that confirms where a check has found the same already."""
    codes = TOPICS[answer.topic].codes if answer.topic else r"(?!)"
    same = next((one for one in kept if one.level != "info" and re.fullmatch(codes, one.code)), None)
    if not answer.fault or same is None or LEVELS.index(same.level) > LEVELS.index(found.level):
        return found
    return replace(found, level="info", what=f"Confirms {same.code}: {found.what}")

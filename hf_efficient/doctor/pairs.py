"""Findings of runs whose script and launch file nobody has put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hf_efficient.doctor.runs import free
from hf_efficient.finding import Finding
from hf_efficient.reading.parts import Part
from hf_efficient.reading.setup import Setup

Found = Sequence[tuple[Setup, Sequence[Finding]]]
"""Runs, each with what was found in it."""


def settled(found: Found, parts: Sequence[Part]) -> list[Finding]:
    """Return the findings of runs; what hangs on a guess of which launch file is which script's is info.

    With one script or one launch file there is nothing to guess. With several of both and no command that names them,
    a finding keeps its level where it is found whichever file is meant: in every run of its script, or of its file.
    """
    launches = {part.file for part in free([part for part in parts if part.kind == "launch"], parts)}
    guessed = [(run, findings) for run, findings in found if run.script is not None and launches & set(run.files)]
    scripts = {run.script.file for run, _ in guessed if run.script is not None and _trains(run)}
    if len(launches) < 2 or len(scripts) < 2:
        return [finding for _, findings in found for finding in findings]
    told: list[Finding] = []
    for run, findings in found:
        alike = [[f for _, f in guessed_with(guessed, file)] for file in run.files]
        kept = {one for every in alike for one in _common(every)}
        sure = all(run is not other for other, _ in guessed)
        told += [one if sure or one in kept or one.level == "info" else _perhaps(one, run) for one in findings]
    return told


def guessed_with(found: Found, file: str) -> Found:
    """Return the runs that a file is part of."""
    return [(run, findings) for run, findings in found if file in run.files]


def _trains(run: Setup) -> bool:
    loop = run.script is not None and bool(run.script.training_loops)
    return run.trainer is not None or run.accelerator is not None or loop


def _common(every: Sequence[Sequence[Finding]]) -> set[Finding]:
    return set.intersection(*map(set, every)) if every else set()


def _perhaps(finding: Finding, run: Setup) -> Finding:
    """Return a finding as one that holds only if these files belong together."""
    return replace(finding, level="info", what=f"If {' and '.join(run.files)} go together: {finding.what}")

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
    guessed = [(run, findings) for run, findings in found if launches & set(run.files) and run.script is not None]
    scripts = {run.script.file for run, _ in guessed if run.script is not None and _trains(run)}
    if len(launches) < 2 or len(scripts) < 2:
        return [finding for _, findings in found for finding in findings]
    told = [finding for pair in found if pair not in guessed for finding in pair[1]]
    for run, findings in guessed:
        sure = {finding for file in run.files for finding in _in_every_run(guessed, file)}
        told += [one if one in sure or one.level == "info" else _perhaps(one, run) for one in findings]
    return told


def _in_every_run(found: Found, file: str) -> set[Finding]:
    """Return what is found in all runs that a file is part of."""
    return set.intersection(*(set(findings) for run, findings in found if file in run.files))


def _trains(run: Setup) -> bool:
    loop = run.script is not None and bool(run.script.training_loops)
    return run.trainer is not None or run.accelerator is not None or loop


def _perhaps(finding: Finding, run: Setup) -> Finding:
    """Return a finding as one that holds only if these files belong together."""
    return replace(finding, level="info", what=f"If {' and '.join(run.files)} go together: {finding.what}")

"""What the doctor answers: findings, and what each knob of each run ends up as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_efficient.checks.run import examine, in_order, with_effective
from hf_efficient.doctor.gather import gather
from hf_efficient.doctor.models import named_model
from hf_efficient.doctor.pairs import settled
from hf_efficient.doctor.runs import runs_of
from hf_efficient.doctor.silence import silenced
from hf_efficient.finding import Finding
from hf_efficient.reading.machines import of_card
from hf_efficient.reading.setup import Setup


@dataclass(frozen=True)
class Report:
    """The doctor's answer on some files."""

    findings: tuple[Finding, ...]
    """Errors first; what was silenced is not among them."""
    runs: tuple[Setup, ...]
    """What the files make together, with `effective`; more than one where files are alternatives."""
    silenced: tuple[tuple[Finding, str], ...] = ()
    """What was found and silenced, with the reason that was given."""

    @property
    def effective(self) -> dict[str, Any]:
        """Return what each knob of the first run ends up as: name to value, by and file."""
        return effective_rows(self.runs[0]) if self.runs else {}

    @property
    def failed(self) -> bool:
        """Is there a finding of level error?"""
        return any(finding.level == "error" for finding in self.findings)

    def data(self) -> dict[str, Any]:
        """Return the report as data that JSON can hold."""
        found: dict[str, Any] = {"findings": [f.row() for f in self.findings], "effective": self.effective}
        if len(self.runs) > 1:
            found["runs"] = [{"files": list(run.files), "effective": effective_rows(run)} for run in self.runs]
        if self.silenced:
            found["silenced"] = [finding.row() | {"reason": reason} for finding, reason in self.silenced]
        return found


def effective_rows(run: Setup) -> dict[str, Any]:
    """Return what each knob of a run ends up as, as data."""
    return {name: knob.row() for name, knob in run.effective.items()}


def examine_files(paths: Sequence[Path], *, gpu: str | None = None, model: str | None = None) -> Report:
    """Return what is wrong in files that make runs together: scripts, commands, YAML, JSON, a checkpoint folder.

    Nothing is executed. `gpu` and `model` say what to check against. Raises ValueError for a path that does not exist,
    an unknown card, and a model whose config.json cannot be had.
    """
    machine = of_card(gpu) if gpu else None
    parts = gather(paths)
    subject = named_model(model) if model else None
    runs = [with_effective(run) for run in runs_of(parts, machine=machine, model=subject)]
    found = [finding for part in parts for finding in part.findings]
    found += settled([(run, examine(run)) for run in runs], parts)
    kept, quiet = silenced(in_order(found), [part.file for part in parts], paths)
    return Report(tuple(kept), tuple(runs), tuple(quiet))

"""Every check on one setup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_efficient.checks.check import Check, checks
from hf_efficient.checks.effective import effective
from hf_efficient.finding import LEVELS, Finding, info
from hf_efficient.reading.document import from_document, settled
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import one_sentence


def run_checks(setup: Mapping[str, Any]) -> list[Finding]:
    """Return what every check finds in a setup document: a mapping with any of the keys trainer, sft, accelerator,
    launch, deepspeed, env, model, peft, data, dataloader, optimizer, scheduler, eval, machine, processes, launcher,
    script.

    Raises ValueError for what is no setup document. Errors come first. Releases are those of `machine.packages`, else
    the installed ones. Source: each check's page, `hf-efficient explain CODE`.
    """
    return examine(with_effective(from_document(setup)))


def with_effective(setup: Setup) -> Setup:
    """Return the setup as checks take it: with the stack's defaults, its engines, and what each knob ends up as."""
    known = settled(setup)
    return known.having(effective=effective(known))


def examine(known: Setup) -> list[Finding]:
    """Return what every check finds in a setup `with_effective`, errors first; an equal finding is told once."""
    given = {**dict(known.subjects()), "setup": known}
    return in_order(finding for check in checks().values() for finding in _asked(check, given))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings once each: errors first, then by place and code."""
    return sorted(
        dict.fromkeys(findings), key=lambda found: (LEVELS.index(found.level), found.where, found.code, found.what)
    )


def _asked(check: Check, given: Mapping[str, Any]) -> list[Finding]:
    """Return what a check finds; a check that breaks on this setup is told as such and stops nobody else."""
    try:
        return list(check.findings(given))
    except Exception as error:
        return [
            info(
                f"The check {check.code} could not judge this setup ({type(error).__name__}: {one_sentence(error)})",
                why="That is a fault of ours and says nothing about your files.",
                fix="Please report it with the files.",
            ).coded(BROKEN)
        ]


BROKEN = "check-broken"
"""The code of a finding that says that a check itself failed."""

"""What each trick set and what came out, as plain text for the end of a run."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from typing import Any

from hf_efficient.plan import Plan

GIB = 2**30


def plan_text(plan: Plan, targets: tuple[str, ...]) -> str:
    """Return a line per author with what it set in `targets`, and the plan's sentences below."""
    lines: dict[str, list[str]] = {}
    for setting in plan.settings:
        if setting.target in targets and setting.key != "deepspeed":
            lines.setdefault(setting.by, []).append(f"{setting.key}={setting.value}")
    width = max((len(author) for author in lines), default=0)
    body = [f"  {author:<{width}}  {', '.join(settings)}" for author, settings in lines.items()]
    return "\n".join([*body, *(f"  {sentence}" for sentence in (*plan.replaced, *plan.notes))])


def outcome_text(outcome: Mapping[str, str]) -> str:
    """Return a line per result, names aligned."""
    width = max(map(len, outcome))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in outcome.items())


def peak_memory() -> str:
    """Return the most memory this run held: what torch allocated on the accelerator, else what the process held."""
    import torch

    if torch.accelerator.is_available():
        return f"{torch.accelerator.max_memory_allocated() / GIB:.2f} GiB allocated on the accelerator"
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB:.2f} GiB of the process"


def run_summary(plan: Plan, targets: tuple[str, ...], outcome: Mapping[str, Any]) -> str:
    """Return the end of a recipe's output: the plan as it ran, and the outcome with the peak memory."""
    rows = {"peak memory": peak_memory(), **{name: str(value) for name, value in outcome.items()}}
    return f"\nWhat each trick set\n{plan_text(plan, targets)}\n\nWhat came out\n{outcome_text(rows)}\n"

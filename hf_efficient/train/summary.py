"""What each trick set and what came out, as plain text for the end of a run."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hf_efficient.plan import Plan
from hf_efficient.trick import MethodCall

if TYPE_CHECKING:
    from torch import nn

GIB = 2**30


def plan_text(plan: Plan, targets: tuple[str, ...]) -> str:
    """Return a line per author with what it set in `targets`, and the plan's sentences below."""
    lines: dict[str, list[str]] = {}
    for setting in plan.settings:
        if setting.key == "deepspeed" and isinstance(setting.value, dict):
            lines.setdefault(setting.by, []).append(f"ZeRO stage {setting.value['zero_optimization']['stage']}")
        elif setting[:2] == ("deepspeed", "zero_optimization.stage") and "accelerator" in targets:
            lines.setdefault(setting.by, []).append(f"ZeRO stage {setting.value}")
        elif setting.target in targets:
            shown = "<hidden>" if setting.key.endswith("_token") else setting.value
            lines.setdefault(setting.by, []).append(f"{setting.key}={shown}")
    for trick in plan.tricks:
        call = trick.prepare.source("model") if isinstance(trick.prepare, MethodCall) else "prepares the model"
        if trick.prepare is not None and trick.name not in lines:
            lines[trick.name] = [call]
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


class Outcome(NamedTuple):
    """What came out of a run: real tokens (no padding) per second, evaluation losses in nats, and the saved model."""

    tokens_per_s: float
    before: float
    after: float
    folder: str
    model: nn.Module


def run_summary(plan: Plan, targets: tuple[str, ...], outcome: Outcome) -> str:
    """Return the end of a recipe's output: the plan as it ran, what came out, and how to run it on your own."""
    rows = {
        "speed": f"{outcome.tokens_per_s:,.0f} tokens/s (padding not counted)",
        "peak memory": peak_memory(),
        "evaluation loss": f"{outcome.after:.3f}"
        if isnan(outcome.before)
        else f"{outcome.before:.3f} -> {outcome.after:.3f}",
        "model": f"{outcome.folder} ({_kind(outcome.model)})",
        "on your own": f"{_launch_command()} --model Qwen/Qwen3-0.6B --data yours.jsonl",
    }
    return f"\nWhat each trick set\n{plan_text(plan, targets)}\n\nWhat came out\n{outcome_text(rows)}\n"


def _kind(model: nn.Module) -> str:
    """Say what is saved: the weights, or an adapter of them, and in which dtype it was trained."""
    trained = next((weight for weight in model.parameters() if weight.requires_grad), next(model.parameters()))
    return f"{str(trained.dtype).removeprefix('torch.')} {'adapter' if hasattr(model, 'peft_config') else 'weights'}"


def _launch_command() -> str:
    """Return how to start this script again, with the environment's own launcher where that lies in this folder."""
    launcher = Path(sys.executable).parent / "accelerate"
    here = launcher.is_relative_to(Path.cwd())
    return f"{launcher.relative_to(Path.cwd()) if here else 'accelerate'} launch {sys.argv[0]}"

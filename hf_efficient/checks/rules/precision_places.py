"""Which precision a run has and what its card can do, as every check of the family asks for it."""

from __future__ import annotations

from typing import Any

from hf_efficient.checks.knob import Knob
from hf_efficient.finding import Place
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup

NO_GPU = ("cpu", "none", "no")


def precision_of(setup: Setup) -> Knob | None:
    """Return the precision that the run ends up with, or None where nothing says so."""
    knob = setup.effective.get("precision")
    return knob if isinstance(knob, Knob) else None


def capability_below(machine: Settings | None, major: int, minor: int = 0) -> bool:
    """Is the card's compute capability known, and lower?"""
    capability = known_capability(machine)
    return capability is not None and capability < (major, minor)


def known_capability(machine: Settings | None) -> tuple[int, int] | None:
    """Return the card's compute capability where it is known."""
    value: Any = (machine or NOTHING).get("capability")
    plain = isinstance(value, list | tuple) and len(value) == 2 and all(type(part) is int for part in value)
    return (value[0], value[1]) if plain else None


def card(machine: Settings | None) -> str:
    """Return the card in words: its name and its compute capability."""
    capability = known_capability(machine)
    name = (machine or NOTHING).text("gpu") or "this card"
    return f"{name} (compute capability {capability[0]}.{capability[1]})" if capability else name


def without_gpu(setup: Setup) -> bool:
    """Is it known that the run has no GPU: asked to use none, or a machine without one?"""
    machine, trainer, accelerator = setup.machine or NOTHING, setup.trainer or NOTHING, setup.accelerator or NOTHING
    told = trainer.on("use_cpu") or accelerator.on("cpu")
    gpus = machine.get("gpus")
    none = machine.said("gpus") and gpus == 0 and not isinstance(gpus, bool)
    return told or none or machine.text("gpu").lower() in NO_GPU or machine.text("accelerator").lower() in NO_GPU


def training_dtype(setup: Setup) -> tuple[str, Place]:
    """Return float32, bfloat16, float16 or an empty string for what autocast computes in, and where that is said."""
    knob = precision_of(setup)
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return (names.get(knob.value, ""), knob.place) if knob and isinstance(knob.value, str) else ("", Place())

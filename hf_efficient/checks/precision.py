"""The precision that a run computes in, whoever says it."""

from __future__ import annotations

from hf_efficient.checks.knob import UNSEEN, Knob
from hf_efficient.reading.engine import unseen
from hf_efficient.reading.settings import NOTHING, UNKNOWN
from hf_efficient.reading.setup import Setup


def precision(setup: Setup) -> Knob | None:
    """Return bf16, fp16, fp8 or fp32: the script's flag, then environment or launcher, then DeepSpeed's file."""
    said = _flag(setup) or environment_precision(setup)
    if said is not None:
        return said
    zero = setup.zero or NOTHING
    for name in ("fp16", "bf16"):
        if zero.on(name):
            return Knob(name, f"{name}.enabled of the DeepSpeed file", zero.where(name))
    owner = setup.trainer if setup.trainer is not None else setup.accelerator
    if owner is None:
        return None
    if unseen(setup) and not (setup.launch or NOTHING).said("mixed_precision"):
        return Knob(UNKNOWN, UNSEEN, owner.place)
    unknown = not all(owner.knows(name) for name in ("bf16", "fp16", "mixed_precision"))
    return Knob(UNKNOWN if unknown else "fp32", "the script" if unknown else "default", owner.place)


def _flag(setup: Setup) -> Knob | None:
    """Return what the script itself asks for."""
    trainer, accelerator = setup.trainer or NOTHING, setup.accelerator or NOTHING
    for name in ("bf16", "fp16"):
        if trainer.on(name):
            return Knob(name, f"{name}=True", trainer.where(name))
    if setup.trainer is None and accelerator.text("mixed_precision"):
        value = accelerator.text("mixed_precision")
        return Knob(
            "fp32" if value == "no" else value, "Accelerator(mixed_precision)", accelerator.where("mixed_precision")
        )
    if setup.sft is not None and setup.sft.get("bf16") is None and not trainer.on("fp16"):
        return Knob("bf16", "SFTConfig's default", trainer.place)
    if any(trainer.said(name) and not trainer.knows(name) for name in ("bf16", "fp16")):
        return Knob(UNKNOWN, "the script", trainer.where("bf16"))
    return None


def environment_precision(setup: Setup) -> Knob | None:
    """Return the precision that the launcher hands over: the environment, then `mixed_precision` of the launch file."""
    env, launch = setup.env or NOTHING, setup.launch or NOTHING
    value = env.get("ACCELERATE_MIXED_PRECISION")
    # accelerate launch writes the variable itself, "no" among them, over what the shell exports
    if isinstance(value, str) and not launch.said("mixed_precision"):
        by = "ACCELERATE_MIXED_PRECISION"
        return Knob("fp32" if value == "no" else value, by, env.where("ACCELERATE_MIXED_PRECISION"))
    value = launch.text("mixed_precision")
    if value and value != "no":
        return Knob(value, "mixed_precision of accelerate launch", launch.where("mixed_precision"))
    return None

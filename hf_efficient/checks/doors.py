"""Through which door a run trains: it decides who fills, compares and ignores what the engine's files say."""

from __future__ import annotations

from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup


def door(setup: Setup) -> str:
    """Return trainer, accelerate (a hand-written loop), deepspeed (`deepspeed.initialize`), or, unknown, nothing."""
    script = setup.script
    if setup.trainer is not None or (
        script is not None and any(call.method.endswith("Trainer") for call in script.calls)
    ):
        return "trainer"
    if setup.accelerator is not None or (script is not None and script.named("Accelerator")):
        return "accelerate"
    return "deepspeed" if script is not None and script.named("deepspeed.initialize") else ""


def named_by_launcher(setup: Setup) -> bool:
    """Does the accelerate YAML, or the launch command, name the DeepSpeed JSON itself?"""
    return setup.launch is not None and setup.launch.said("deepspeed_config.deepspeed_config_file")


def is_zero_3(zero: Settings) -> bool:
    """Is the engine known to shard the weights too?"""
    return bool(zero.number("stage") == 3)

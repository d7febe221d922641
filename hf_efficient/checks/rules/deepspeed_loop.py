"""Accumulation and clipping of a run under DeepSpeed: what its files say beats what the code says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.doors import door, named_by_launcher
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

STEPS, CLIPPING = "gradient_accumulation_steps", "gradient_clipping"


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"})
def deepspeed_accumulation_beats_code(setup: Setup, zero: Settings, accelerator: Settings) -> Iterator[Finding]:
    """Find a hand-written loop whose accumulation is another than DeepSpeed's configuration says.

    Accelerator.prepare takes DeepSpeed's value (_prepare_deepspeed) with a line in the log: what the accelerate YAML or
    the JSON says wins over Accelerator(gradient_accumulation_steps=...), and a JSON without the key counts as 1
    (DeepSpeedPlugin fills it in). "auto" in the JSON, or no key in the YAML, takes the value of the code.
    """
    asked = accelerator.number(STEPS)
    if setup.trainer is not None or asked is UNKNOWN:
        return
    missing = setup.deepspeed is not None and not zero.said(STEPS) and not zero.open
    held = 1 if missing else zero.number(STEPS)
    if held is UNKNOWN or held == asked:
        return
    where = "DeepSpeed JSON" if setup.deepspeed is not None else "accelerate YAML"
    told = f"no {STEPS} in the {where}, which counts as 1" if missing else f"{STEPS}: {held} in the {where}"
    remedy = (
        f'"{STEPS}": "auto" in the JSON' if setup.deepspeed is not None else f"{STEPS}: {asked}, or leave it out there"
    )
    yield error(
        f"Accelerator({STEPS}={asked}), and {told}",
        why=f"DeepSpeed's value wins: the run accumulates {held} and not {asked}, so the effective batch is another.",
        fix=f"Write {remedy}.",
        at=zero.where(STEPS),
    )


@check({"accelerate": ">=1.0"})
def launcher_accumulation_without_deepspeed(launch: Settings) -> Iterator[Finding]:
    """Find gradient_accumulation_steps said to the launcher of a run without DeepSpeed.

    accelerate hands it over for DeepSpeed only (prepare_deepspeed_cmd_env in accelerate/utils/launch.py sets the
    variable, the other launchers do not), so a run of MULTI_GPU, FSDP or one process ignores it.
    """
    kind = launch.text("distributed_type")
    path = STEPS if launch.said(STEPS) else f"deepspeed_config.{STEPS}"
    asked = launch.number(path)
    if asked is UNKNOWN or asked == 1 or kind in ("DEEPSPEED", ""):
        return
    yield warning(
        f"{STEPS} {asked} for accelerate launch, with distributed_type {kind}",
        why="The launcher hands it over for DeepSpeed only; any other run ignores it.",
        fix=f"Say it in the script: Accelerator({STEPS}={asked}) or TrainingArguments({STEPS}={asked}).",
        at=launch.where(path),
    )


@check({"transformers": ">=4.46", "accelerate": ">=1.0"}, seen="ran on CPU")
def deepspeed_accumulation_missing(setup: Setup, trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find a DeepSpeed JSON without gradient_accumulation_steps whose Trainer accumulates.

    DeepSpeedPlugin fills the missing key with 1 after transformers has compared, so that the engine works with 1 while
    the arguments say otherwise: where train_batch_size stands in the file DeepSpeed's product assertion fails, else the
    run goes on in silence. Named by the launcher, the JSON is compared after that, and transformers raises.
    """
    asked = trainer.number(STEPS)
    if asked is UNKNOWN or asked <= 1 or deepspeed.said(STEPS) or deepspeed.open:
        return
    fails = named_by_launcher(setup) or deepspeed.said("train_batch_size")
    yield error(
        f"{STEPS}={asked} in the arguments, and no {STEPS} in the DeepSpeed JSON",
        why="The key is then filled with 1: "
        + ("the run stops with a mismatch." if fails else f"the engine runs with 1 instead of {asked}, in silence."),
        fix=f'Add "{STEPS}": "auto" to the JSON.',
        at=deepspeed.place,
    )


@check({"transformers": ">=4.46", "accelerate": ">=1.0"})
def launcher_deepspeed_against_arguments(launch: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find ZeRO keys of the accelerate YAML that differ from the Trainer's arguments.

    transformers compares the configuration that accelerate makes of the YAML as it compares a JSON
    (propagate_args_to_deepspeed), so that another accumulation or clipping raises ValueError when train() begins.
    """
    if trainer.said("deepspeed") and not trainer.off("deepspeed"):
        return
    for key, field in ((STEPS, STEPS), (CLIPPING, "max_grad_norm")):
        path = f"deepspeed_config.{key}"
        there, here = launch.number(path), trainer.number(field)
        if there is UNKNOWN or here is UNKNOWN or there == here or (key == CLIPPING and there == 0):
            continue
        yield error(
            f"{path} is {there} in the accelerate YAML and {field}={here} in the arguments",
            why="transformers raises ValueError about mismatching DeepSpeed values when train() begins.",
            fix=f"Remove {key} from deepspeed_config, so that {here} of {field} is taken, or write {here} there.",
            at=launch.where(path),
        )


@check({"deepspeed": "==0.19.8", "accelerate": ">=1.0"}, seen="ran on CPU")
def deepspeed_clipping_zero_in_yaml(launch: Settings) -> Iterator[Finding]:
    """Find gradient_clipping 0 in the deepspeed_config of the accelerate YAML: it means no key, and so 1.0.

    DeepSpeedPlugin leaves the key out where the value is 0, and deepspeed 0.19.8 clips at 1.0 where the key is missing.
    """
    path = f"deepspeed_config.{CLIPPING}"
    if launch.number(path) == 0 and not launch.said("deepspeed_config.deepspeed_config_file"):
        yield warning(
            f"{path} is 0",
            why="accelerate leaves the key out for 0, and DeepSpeed then clips at its own default, 1.0.",
            fix=f'To switch clipping off use a DeepSpeed JSON (deepspeed_config_file) with "{CLIPPING}": 0.0.',
            at=launch.where(path),
        )


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"})
def clip_grad_norm_ignored_by_deepspeed(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find a hand-written loop that clips at another norm than DeepSpeed does.

    Under DeepSpeed accelerator.clip_grad_norm_ only returns the norm (accelerate/accelerator.py): the engine clips
    inside backward(), at gradient_clipping of its configuration, which accelerate fills with 1.0 where it is "auto" or,
    in the YAML, missing.
    """
    script, held = setup.script, _clips_at(setup, zero)
    if script is None or door(setup) != "accelerate" or held is UNKNOWN:
        return
    for call, norm in _clips_itself(script):
        if norm is not UNKNOWN and norm != held:
            yield warning(
                f"{call.method}(..., {norm}) under DeepSpeed, whose {CLIPPING} is {held}",
                why=f"The engine clips at its own value inside backward(): {held}; the call in the loop does not clip.",
                fix=f"Write {CLIPPING}: {norm} in deepspeed_config of the accelerate YAML, or in the JSON.",
                at=call.place,
            )


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_clipping_auto_in_loop(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find gradient_clipping "auto" in the DeepSpeed JSON of a hand-written loop.

    Only Trainer has an argument to fill it from. accelerate fills it with 1.0 (_prepare_deepspeed), whatever the loop
    does, also where it clips nothing. Silent where the loop clips at a number that can be read:
    clip-grad-norm-ignored-by-deepspeed then says whether the two differ.
    """
    script = setup.script
    if script is None or door(setup) != "accelerate" or deepspeed.text(CLIPPING) != "auto":
        return
    if any(norm is not UNKNOWN for _, norm in _clips_itself(script)):
        return
    yield info(
        f'{CLIPPING} is "auto" in the DeepSpeed JSON of a hand-written loop',
        why="accelerate makes 1.0 of it, whatever the loop does: the engine clips at 1.0.",
        fix=f'Write the norm that you mean: "{CLIPPING}": 1.0, or 0.0 for no clipping.',
        at=deepspeed.where(CLIPPING),
    )


def _clips_itself(script: Script) -> Iterator[tuple[Call, Any]]:
    """Yield every call that clips by norm, and the norm, UNKNOWN where it cannot be read."""
    for call in script.calls:
        if call.method in ("clip_grad_norm_", "clip_grad_norm"):
            norm = call.args[1] if len(call.args) > 1 else call.keywords.get("max_norm")
            yield call, norm if isinstance(norm, int | float) and not isinstance(norm, bool) else UNKNOWN


def _clips_at(setup: Setup, zero: Settings) -> Any:
    """Return where the engine of a hand-written loop clips, or UNKNOWN."""
    if zero.open:
        return UNKNOWN
    value = zero.get(CLIPPING)
    if value == "auto" or (value is None and setup.deepspeed is None):
        return 1.0
    return zero.number(CLIPPING)


@check({"accelerate": ">=1.0"})
def launcher_accumulation_auto(setup: Setup, launch: Settings, trainer: Settings = NOTHING) -> Iterator[Finding]:
    """Find gradient_accumulation_steps "auto" in the accelerate YAML.

    Accelerator() makes an int of the variable that the launcher sets, so that "auto" raises ValueError in a
    hand-written loop. The Trainer passes a plugin of its own, and then it is fine. "auto" belongs into a DeepSpeed
    JSON.
    """
    path = f"deepspeed_config.{STEPS}"
    if launch.text(path) != "auto" or trainer or door(setup) == "trainer":
        return
    steps = (setup.accelerator or NOTHING).number(STEPS)
    told = error if door(setup) == "accelerate" else warning
    yield told(
        f'{path} is "auto" in the accelerate YAML',
        why='Accelerator() makes an int of it and raises ValueError: "auto" is understood in a DeepSpeed JSON only.',
        fix=f"Leave {STEPS} out of the YAML" + ("." if steps is UNKNOWN else f", or write {steps}."),
        at=launch.where(path),
    )

"""Precision that several files name: arguments, environment, launcher and DeepSpeed's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.precision import environment_precision
from hf_efficient.finding import Finding, Place, error, info
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

HALVES = ("fp16", "bf16")
INLINE_KEYS = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage",
    "offload_optimizer_device", "offload_param_device",
    "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""What accelerate refuses beside deepspeed_config_file (accelerate 1.15, dataclasses.py, _deepspeed_config_checks)."""


def flag(trainer: Settings, name: str) -> Any:
    """Return whether the arguments turn fp16 or bf16 on, evaluation included; UNKNOWN where that cannot be known."""
    values = [trainer.get(name), trainer.get(f"{name}_full_eval")]
    if name == "bf16" and values[0] is None:
        values[0] = UNKNOWN if not trainer.knows("fp16") else not trainer.on("fp16")  # SFTConfig fills it in so
    if any(value is not UNKNOWN and value for value in values):
        return True
    return UNKNOWN if any(value is UNKNOWN for value in values) else False


def _enabled(deepspeed: Settings, name: str) -> Any:
    """Return True or False where the DeepSpeed file says so literally, else None."""
    value = deepspeed.get(f"{name}.enabled")
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value if isinstance(value, bool) else None


def _told(setup: Setup) -> str:
    """Return what environment or launcher say, in words, with a comma before; empty where nothing."""
    knob = environment_precision(setup)
    return f", and {knob.by} is {knob.value}" if knob is not None else ""


@check({"transformers": ">=4.30"}, seen="ran on CPU")
def deepspeed_precision_mismatch(deepspeed: Settings, trainer: Settings, setup: Setup) -> Iterator[Finding]:
    """Find a DeepSpeed file whose fp16.enabled or bf16.enabled is not what the training arguments say.

    The Trainer compares both (transformers/integrations/deepspeed.py, trainer_config_process): a literal that differs
    from fp16 | fp16_full_eval or bf16 | bf16_full_eval raises ValueError when train() begins, after the model is
    loaded. "auto" takes the arguments' value. What ACCELERATE_MIXED_PRECISION or the launcher say does not count
    there.
    """
    words = []
    for name in HALVES:
        said, asked = _enabled(deepspeed, name), flag(trainer, name)
        if said is not None and asked is not UNKNOWN and said is not asked:
            words.append((name, said, asked))
    if not words:
        return
    flags = ", ".join(f"{name}={flag(trainer, name)}" for name in HALVES)
    files = ", ".join(f"{name}.enabled is {str(said).lower()}" for name, said, _ in words)
    kept = [name for name in HALVES if flag(trainer, name) is True]
    wanted = [name for name in HALVES if _enabled(deepspeed, name)]
    if len(kept) == 1 and wanted and wanted != kept and not trainer.said(kept[0]):
        flagged = f"say {wanted[0]}=True, or leave {kept[0]}, {kept[0]}=True being what the class turns on by itself"
    elif len(kept) == 1:
        flagged = f"keep {kept[0]}=True in the arguments"
    else:
        flagged = f"say one flag, {(wanted or ['bf16'])[0]}=True, in the arguments"
        flagged += "" if kept or not wanted else " (or none for fp32)"
    yield error(
        f"{files} in the DeepSpeed file, but the arguments say {flags}{_told(setup)}",
        why="train() raises ValueError (values that mismatch TrainingArguments): the file's literal must equal"
        " the argument, whatever"
        " ACCELERATE_MIXED_PRECISION or mixed_precision say.",
        fix=f'Write "enabled": "auto" under fp16 and bf16 in the file and {flagged}.',
        at=deepspeed.where(f"{words[0][0]}.enabled"),
    )


@check({"transformers": ">=5.0", "accelerate": ">=1.0"}, seen="ran on CPU")
def launched_precision_without_flag(launch: Settings, trainer: Settings, setup: Setup) -> Iterator[Finding]:
    """Find a precision of the launcher, with DeepSpeed configured in its YAML, that the arguments do not ask for.

    accelerate writes mixed_precision into the DeepSpeed configuration that it makes of the YAML's keys, and Trainer
    then compares bf16.enabled or fp16.enabled with its own flags and raises ValueError for the difference. Without
    DeepSpeed the launcher's precision alone is enough.
    """
    inline = launch.part("deepspeed_config")
    asked, script = environment_precision(setup), trainer.said("deepspeed") or setup.deepspeed is not None
    if script or inline.said("deepspeed_config_file") or not inline.said("zero_stage") or asked is None:
        return
    if asked.value in HALVES and all(flag(trainer, name) is False for name in HALVES):
        yield error(
            f"{asked.by} is {asked.value} with DeepSpeed, but the arguments say {asked.value}=False",
            why="accelerate enables it in DeepSpeed's configuration, and Trainer raises ValueError: values that"
            " mismatch"
            " TrainingArguments.",
            fix=f"Set {asked.value}=True in TrainingArguments, or mixed_precision: 'no' in the accelerate"
            f" configuration.",
            at=asked.place,
        )


@check({"accelerate": ">=1.0"}, seen="read source")
def deepspeed_precision_against_accelerator(deepspeed: Settings, setup: Setup) -> Iterator[Finding]:
    """Find a mixed precision, asked of accelerate, that the DeepSpeed file contradicts.

    With an Accelerator of one's own accelerate writes the precision into DeepSpeed's configuration (dataclasses.py,
    DeepSpeedPlugin.set_mixed_precision): it raises ValueError where the file enables the other half precision, and
    where the file says "enabled": false for the one asked for, that stays, so the run is fp32 without a word. Where
    Accelerator is told nothing, the environment or the launcher count. With "auto", or without the block, all is
    well.
    """
    if setup.trainer is not None:
        return
    accelerator = setup.accelerator or NOTHING
    knob = environment_precision(setup)
    asked = accelerator.text("mixed_precision") or (knob.value if knob is not None and not accelerator.open else "")
    if asked not in HALVES:
        return
    other = HALVES[1 - HALVES.index(asked)]
    if _enabled(deepspeed, other):
        yield error(
            f"mixed_precision {asked} with {other}.enabled: true in the DeepSpeed file",
            why=f"accelerate raises ValueError: mixed_precision cannot be {asked} while {other} is set in the file.",
            fix=f'Write "enabled": "auto" under {asked} and remove {other}, or ask for mixed_precision="{other}".',
            at=deepspeed.where(f"{other}.enabled"),
        )
    elif _enabled(deepspeed, asked) is False:
        yield error(
            f"mixed_precision {asked} with {asked}.enabled: false in the DeepSpeed file",
            why=f"The file wins without a word, so the run is fp32: accelerate only fills in values that are"
            f' "auto" ({asked}).',
            fix=f'Write "enabled": "auto" under {asked} in the DeepSpeed file.',
            at=deepspeed.where(f"{asked}.enabled"),
        )


@check({"transformers": ">=4.30"}, seen="ran on CPU")
def fp16_and_bf16_together(trainer: Settings) -> Iterator[Finding]:
    """Find fp16 and bf16 both turned on in the arguments.

    TrainingArguments raises ValueError for fp16 with bf16, and for fp16_full_eval with bf16_full_eval. Of a DeepSpeed
    file that enables both blocks deepspeed-fp16-and-bf16 tells.
    """
    for ending in ("", "_full_eval"):
        if trainer.on(f"fp16{ending}") and trainer.on(f"bf16{ending}"):
            yield error(
                f"fp16{ending}=True and bf16{ending}=True",
                why="TrainingArguments raises ValueError: at most one of fp16 and bf16 can be True.",
                fix=f"Keep bf16{ending}=True on a card of compute capability 8.0 or more, else fp16{ending}=True.",
                at=trainer.where(f"fp16{ending}"),
            )


@check({"accelerate": ">=0.26"}, seen="ran on CPU")
def flag_wins_over_environment(setup: Setup) -> Iterator[Finding]:
    """Find a precision of the launcher or the environment that the script's own flag overrules.

    TrainingArguments takes ACCELERATE_MIXED_PRECISION, which `accelerate launch` sets from --mixed_precision or its
    YAML, only where neither fp16 nor bf16 is True; SFTConfig and its kin set bf16 unless fp16 is True. Accelerator
    takes it only where mixed_precision is not given. The other value has no effect and misleads readers.
    """
    told, said = environment_precision(setup), _own_flag(setup)
    if told is None or said is None or said[0] == told.value:
        return
    yield info(
        f"{said[1]} in the script, but {told.by} is {told.value}",
        why=f"The script's flag wins, so {said[0]} is the effective precision; {told.value} from the"
        f" environment or launcher has no"
        " effect.",
        fix=f"Say it once: set ACCELERATE_MIXED_PRECISION or mixed_precision to {_launched(said[0])} too, or"
        f" remove it there.",
        at=said[2],
    )


def _launched(precision: str) -> str:
    return "no" if precision == "fp32" else precision


def _own_flag(setup: Setup) -> tuple[str, str, Place] | None:
    """Return the precision that the script itself asks for, how, and where."""
    if setup.trainer is not None:
        for name in HALVES:
            if flag(setup.trainer, name) is True and not setup.trainer.on(f"{name}_full_eval"):
                how = f"{name}=True" if setup.trainer.on(name) else "SFTConfig's default bf16=True"
                return name, how, setup.trainer.where(name)
        return None
    value = (setup.accelerator or NOTHING).text("mixed_precision")
    if setup.accelerator is None or not value:
        return None
    place = setup.accelerator.where("mixed_precision")
    return "fp32" if value == "no" else value, f'Accelerator(mixed_precision="{value}")', place


@check({"accelerate": ">=0.26"}, seen="read source")
def launch_keys_beside_deepspeed_file(launch: Settings) -> Iterator[Finding]:
    """Find keys of an accelerate YAML that are refused beside deepspeed_config_file.

    DeepSpeedPlugin raises ValueError where the YAML names a DeepSpeed file and also says one of
    gradient_accumulation_steps, gradient_clipping, zero_stage, offload_optimizer_device, offload_param_device, their
    nvme paths, zero3_save_16bit_model, or mixed_precision at its top level, "no" included
    (accelerate/utils/dataclasses.py, _deepspeed_config_checks; commands/launch.py). --mixed_precision on the command
    line is not refused.
    """
    part = launch.part("deepspeed_config")
    if not part.said("deepspeed_config_file") or part.off("deepspeed_config_file"):
        return
    here = part.where("deepspeed_config_file").file
    wrong = [key for key in INLINE_KEYS if part.said(key)]
    precision = launch.said("mixed_precision") and launch.get("mixed_precision") is not None
    if precision and launch.where("mixed_precision").file == here:
        wrong.append("mixed_precision")
    if wrong:
        first = f"deepspeed_config.{wrong[0]}" if wrong[0] != "mixed_precision" else wrong[0]
        yield error(
            f"{', '.join(wrong)} beside deepspeed_config_file in the accelerate configuration",
            why="accelerate raises ValueError when the DeepSpeed plugin is made: such keys would be ignored in"
            " favour of the file.",
            fix='Remove them from the YAML and say them in the DeepSpeed JSON ("auto" where TrainingArguments'
            " say it); precision goes into"
            " fp16.enabled or bf16.enabled, or to the script's flag.",
            at=launch.where(first),
        )

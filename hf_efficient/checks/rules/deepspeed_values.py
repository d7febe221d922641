"""Values of a DeepSpeed JSON that have the wrong type, or that nobody can take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import AUTO_TRAINER, TOP_FLAGS, ZERO_FLAGS, ZERO_NUMBERS
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

TEXT_KEYS = ("nvme_path", "job_name", "output_path", "output_file", "project", "team", "group", "type", "name", "dtype")
TEXT_BLOCKS = (
    "wandb",
    "tensorboard",
    "csv_monitor",
    "comet",
    "comms_logger",
    "autotuning",
    "data_efficiency",
    "data_types",
)
COERCED = ("zero_optimization.", "fp16.", "bf16.")
"""Blocks whose fields pydantic converts from a string."""
STAGES = (0, 1, 2, 3)
DEVICES = ("none", "cpu", "nvme")


def _as_number(value: str) -> Any:
    """Return the number that a string spells, or None."""
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return None


def _converts(path: str, value: str) -> bool:
    """Does pydantic take the string for the number, with nobody else looking at it?"""
    whole = value.strip().lstrip("+-").isdigit()
    return path.startswith(COERCED) and path != "zero_optimization.stage" and whole


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_number_as_string(deepspeed: Settings) -> Iterator[Finding]:
    """Find numbers that the DeepSpeed JSON holds in quotes.

    `"8"` is a string: transformers compares it with the argument and reports a mismatch, DeepSpeed divides and
    multiplies it and fails with a TypeError, an optimizer refuses a learning rate of `"5e-5"`, and ZeRO stage `"3"` is
    not stage 3 for transformers, so that the model is not sharded while it is loaded. Inside zero_optimization, fp16
    and bf16 pydantic turns whole numbers in quotes into numbers; those are told as a warning.
    """
    for path, value in deepspeed.walk():
        last, first = path.rpartition(".")[2], path.partition(".")[0]
        if last in TEXT_KEYS or first in TEXT_BLOCKS:
            continue
        entries = value if isinstance(value, list) else [value]
        texts = [entry for entry in entries if isinstance(entry, str) and _as_number(entry) is not None]
        if last == "betas" and isinstance(value, str) and value != "auto":
            texts = [value]
        if not texts:
            continue
        told = warning if _converts(path, texts[0]) else error
        kind = (
            "a list of two numbers"
            if last == "betas"
            else "an integer"
            if isinstance(_as_number(texts[0]), int)
            else "a number"
        )
        remedy = ', or "auto", which the Trainer fills with the value of its arguments' if path in AUTO_TRAINER else ""
        yield told(
            f'{path} is the string "{texts[0]}"',
            why=f"It must be {kind}: a string is neither compared with the arguments nor computed with.",
            fix=f"Write {texts[0].strip()} without the quotes{remedy}.",
            at=deepspeed.where(path),
        )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_flag_as_string(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find true and false in quotes.

    Every non-empty string is true in Python: `"false"` for zero_force_ds_cpu_optimizer means true, and for
    bf16.enabled or fp16.enabled transformers compares the string with a bool and reports a mismatch. Inside
    zero_optimization pydantic reads the string, so nothing is told there.
    """
    paths = [*TOP_FLAGS, *(["fp16.enabled", "bf16.enabled"] if door(setup) == "trainer" else [])]
    for path in paths:
        value = deepspeed.get(path)
        if isinstance(value, str) and value != "auto":
            right = "false" if value.lower() in ("false", "no", "off", "0", "none", "") else "true"
            yield error(
                f'{path} is the string "{value}"',
                why="A string in quotes is no bool: any non-empty string counts as true, or is refused as a mismatch.",
                fix=f"Write {right} without the quotes.",
                at=deepspeed.where(path),
            )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_wrong_type(deepspeed: Settings) -> Iterator[Finding]:
    """Find values of zero_optimization that its fields cannot hold: flags for numbers, blocks for flags, and the like.

    The fields are pydantic's, which refuses a list or a mapping for a number and a word for a flag.
    """
    for key in (*ZERO_NUMBERS, *ZERO_FLAGS):
        path = f"zero_optimization.{key}"
        value = deepspeed.get(path)
        if value is None or value is UNKNOWN or key == "stage" or value == "auto":
            continue
        number = key in ZERO_NUMBERS
        wrong = isinstance(value, list | dict) or (isinstance(value, str) and number and _as_number(value) is None)
        wrong = wrong or (number and isinstance(value, float) and not value.is_integer())
        wrong = wrong or (not number and isinstance(value, int | float) and value not in (0, 1))
        wrong = wrong or (number and isinstance(value, int | float) and value < (key == "reduce_bucket_size"))
        if wrong:
            yield error(
                f"{path} is {value!r:.60}",
                why=f"DeepSpeed takes {'a whole number that is not negative' if number else 'true or false'} there and "
                "refuses the file.",
                fix=f"Write {'an integer' if number else 'true or false'}, or leave {key} out for its default.",
                at=deepspeed.where(path),
            )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def zero_stage_unknown(zero: Settings) -> Iterator[Finding]:
    """Find a ZeRO stage that is none of 0, 1, 2 and 3.

    DeepSpeed's ZeroStageEnum has these four: optimizer states (1), gradients too (2), parameters too (3).
    """
    stage = zero.get("stage")
    if stage is None or stage is UNKNOWN or stage == "auto":
        return
    number = int(stage) if isinstance(stage, str) and stage.isdecimal() else stage
    if isinstance(number, bool) or number not in STAGES:
        yield error(
            f"ZeRO stage {stage!r}",
            why="DeepSpeed knows the stages 0, 1, 2 and 3 only and refuses the configuration.",
            fix="Set zero_optimization.stage (zero_stage in the accelerate YAML) to 1, 2 or 3.",
            at=zero.where("stage"),
        )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def zero_offload_device_unknown(zero: Settings) -> Iterator[Finding]:
    """Find an offload device that is none of none, cpu and nvme.

    DeepSpeed's OffloadDeviceEnum refuses any other word, "gpu" and "disk" among them.
    """
    for key in ("offload_optimizer", "offload_param"):
        value = zero.get(key)
        if value is None or value is UNKNOWN or value == "auto" or value in DEVICES:
            continue
        if isinstance(value, str) and value.lower() in DEVICES and zero.where(key).file.endswith((".yaml", ".yml")):
            continue  # accelerate lowers the word of its YAML
        yield error(
            f"{key} goes to the device {value!r}",
            why="DeepSpeed offloads to cpu or nvme, or not at all (none), and refuses any other word.",
            fix=f'Write "cpu", "nvme" or "none" as the device of {key}, in small letters.',
            at=zero.where(key),
        )


@check({"deepspeed": ">=0.10"})
def deepspeed_offload_without_block(deepspeed: Settings) -> Iterator[Finding]:
    """Find an offload that is said as a word or a flag instead of a block.

    offload_optimizer and offload_param are mappings with a `device`; `true` or "cpu" in their place are refused, and
    transformers asks them for their device first and fails with an AttributeError.
    """
    for key in ("offload_optimizer", "offload_param"):
        value = deepspeed.get(f"zero_optimization.{key}")
        if isinstance(value, str | int) and value != "auto":
            device = value if value in DEVICES else "cpu"
            yield error(
                f"zero_optimization.{key} is {value!r} and no block",
                why="DeepSpeed, transformers and accelerate read the device inside the block.",
                fix=f'Write "{key}": {{"device": "{device}"}}.',
                at=deepspeed.where(f"zero_optimization.{key}"),
            )

"""A DeepSpeed JSON against the arguments of the Trainer, and against itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import BATCH
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

MICRO, STEPS, TOTAL = BATCH
CLIPPING = "gradient_clipping"
FROM = {
    MICRO: "per_device_train_batch_size",
    STEPS: "gradient_accumulation_steps",
    CLIPPING: "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
"""Paths of the JSON that transformers compares with one argument (trainer_config_process)."""


@check({"transformers": ">=4.46"}, seen="ran on CPU")
def deepspeed_mismatch(setup: Setup, trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find values of the DeepSpeed JSON that differ from the Trainer's arguments.

    transformers compares batch sizes, accumulation, clipping, lr, betas, eps, weight_decay and warmup (and precision:
    deepspeed-precision-mismatch), and raises ValueError once train() begins. A key that the JSON leaves out, or whose
    value is "auto", is no mismatch; an argument that nobody gave is compared at its default. warmup_num_steps must be
    max(1, get_warmup_steps(...)), so 1 where warmup_steps is left at 0, and a share of the run below 1
    (transformers/integrations/deepspeed.py, trainer_config_finalize).
    """
    pairs = [(path, deepspeed.get(path), key, trainer.get(key)) for path, key in FROM.items()]
    pairs += [_betas(trainer, deepspeed), *_schedule(trainer, deepspeed)]
    pairs.append((TOTAL, deepspeed.get(TOTAL), "train_batch_size (calculated)", _product(setup, trainer)))
    for path, there, key, here in pairs:
        if _differ(there, here):
            yield error(
                f"{path} is {_spelled(there)} in the DeepSpeed JSON and {key} is {_spelled(here)} in the arguments",
                why="transformers refuses the pair with a ValueError about mismatching values when train() begins.",
                fix=_cure(trainer, path, key, there, here),
                at=deepspeed.where(path),
            )


def _cure(trainer: Settings, path: str, key: str, there: Any, here: Any) -> str:
    """Return what makes both agree; "auto" for a value that only a default contradicts would lose the value."""
    auto, value = f'"{path.rpartition(".")[2]}": "auto" in the JSON', _spelled(there)
    if path in BATCH:
        told = f" and set {key}={value} in the arguments, if {value} is meant" if path != TOTAL else ""
        return f'Write "auto" for {TOTAL}, {MICRO} and {STEPS} in the JSON, so that the arguments alone say them{told}.'
    names = key.split("+")
    if any(trainer.said(name) for name in names):
        return f"Write {auto}, which takes {_spelled(here)} from {key}."
    values = there if isinstance(there, list) and len(there) == len(names) else [there] * len(names)
    pairs = ", ".join(f"{name}={_spelled(one)}" for name, one in zip(names, values, strict=True))
    return f'Set {pairs} in the arguments, with {auto} or the number as it is; "auto" alone takes the default, ' + (
        f"{_spelled(here)}."
    )


def _differ(there: Any, here: Any) -> bool:
    """Are both known, and different? What is no number, flag or list of numbers is another check's."""
    kinds = (int, float, list)
    return isinstance(there, kinds) and isinstance(here, kinds) and there != here


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _betas(trainer: Settings, deepspeed: Settings) -> tuple[str, Any, str, Any]:
    betas = [trainer.number("adam_beta1"), trainer.number("adam_beta2")]
    here = UNKNOWN if any(beta is UNKNOWN for beta in betas) else betas
    there = deepspeed.get("optimizer.params.betas")
    plain = isinstance(there, list) and all(isinstance(beta, int | float) for beta in there)
    return "optimizer.params.betas", there if plain else None, "adam_beta1+adam_beta2", here


def _schedule(trainer: Settings, deepspeed: Settings) -> Iterator[tuple[str, Any, str, Any]]:
    warmup, steps = trainer.number("warmup_steps"), trainer.number("max_steps")
    key = "scheduler.params.warmup_num_steps"
    share = 0 < warmup < 1
    if 0 <= warmup < 1e12 and deepspeed.number(key) >= 1 and (not share or 0 < steps < 1e12):
        counted = math.ceil(steps * warmup) if share else int(warmup)
        yield key, deepspeed.get(key), "warmup_steps", max(1, counted)
    if steps > 0:
        key = "scheduler.params.total_num_steps"
        yield key, deepspeed.get(key), "max_steps", steps


def _product(setup: Setup, trainer: Settings) -> Any:
    """Return the arguments' batch over all processes, or UNKNOWN."""
    sizes = [trainer.number(key) for key in (FROM[MICRO], FROM[STEPS])]
    whole = all(isinstance(size, int) for size in sizes)
    return sizes[0] * sizes[1] * setup.processes if whole and setup.processes else UNKNOWN


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_batch_product(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find batch sizes of the DeepSpeed JSON that do not multiply to train_batch_size.

    DeepSpeed asserts train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x processes
    (_batch_assertion in deepspeed/runtime/config.py). Where the number of processes is unknown, only a product that no
    number of them can mend is told. Sequence parallelism divides the processes; then nothing is told.
    """
    micro, steps, total = (deepspeed.number(key) for key in BATCH)
    whole = all(isinstance(size, int) and size > 0 for size in (micro, steps, total))
    if not whole or deepspeed.said("sequence_parallel_size") or deepspeed.said("tensor_parallel"):
        return
    processes = setup.processes
    if total == micro * steps * processes if processes else total % (micro * steps) == 0:
        return
    times = f" x {processes} processes" if processes else " x processes"
    filled = door(setup) == "trainer"
    yield error(
        f"{TOTAL} is {total}, but {MICRO} {micro} x {STEPS} {steps}{times}"
        + (f" is {micro * steps * processes}" if processes else " cannot give it"),
        why="DeepSpeed asserts that the product is the train batch size, and stops.",
        fix=f'Write "auto" for {TOTAL}, {MICRO} and {STEPS}; the arguments then say the last two.'
        if filled
        else f'Leave {TOTAL} out or write "auto"'
        + (f", or {micro * steps * processes}." if processes else ", or a multiple of the product."),
        at=deepspeed.where(TOTAL),
    )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_batch_not_positive(deepspeed: Settings) -> Iterator[Finding]:
    """Find batch sizes and accumulation steps below 1 or with a fraction.

    DeepSpeed asserts that each of the three is greater than 0, and computes with them as integers.
    """
    for key in BATCH:
        value = deepspeed.number(key)
        if value is not UNKNOWN and (value < 1 or not (isinstance(value, int) or value.is_integer())):
            yield error(
                f"{key} is {value}",
                why="DeepSpeed asserts that batch sizes and accumulation are whole numbers greater than 0.",
                fix=f'Write "{key}": "auto", or an integer of at least 1.',
                at=deepspeed.where(key),
            )


@check({"deepspeed": "==0.19.8", "transformers": ">=4.46"}, seen="ran on CPU")
def deepspeed_max_grad_norm_ignored(trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find a DeepSpeed JSON without gradient_clipping: max_grad_norm is then ignored.

    Under DeepSpeed the engine clips, and it asks its own file only. Without the key deepspeed 0.19.8 clips at 1.0
    (GRADIENT_CLIPPING_DEFAULT in deepspeed/runtime/constants.py), whatever max_grad_norm says, also where that is 0.0,
    which asks for no clipping. transformers sees no mismatch, since the key is not there.
    """
    norm = trainer.number("max_grad_norm")
    if deepspeed.said(CLIPPING) or deepspeed.open or norm is UNKNOWN or norm == 1:
        return
    yield error(
        f"max_grad_norm={norm} and no {CLIPPING} in the DeepSpeed JSON",
        why=f"The engine ignores max_grad_norm without that key and clips at its own default, 1.0, not at {norm}.",
        fix=f'Add "{CLIPPING}": "auto" (then {norm} is in force), or "{CLIPPING}": {norm}.',
        at=deepspeed.place,
    )


@check({"deepspeed": "<0.19.8", "transformers": ">=4.46"})
def deepspeed_clipping_left_to_default(trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find a DeepSpeed JSON without gradient_clipping, for releases before 0.19.8.

    The engine clips as its own file says and ignores max_grad_norm; what a release takes where the key is missing
    differs, older ones not clipping at all. Ask `DeepSpeedConfig(json).gradient_clipping` of the installed release.
    """
    norm = trainer.number("max_grad_norm")
    if not (deepspeed.said(CLIPPING) or deepspeed.open or norm is UNKNOWN):
        yield warning(
            f"max_grad_norm={norm} and no {CLIPPING} in the DeepSpeed JSON",
            why="The engine ignores max_grad_norm without that key and takes its own default, which differs by release "
            "(no clipping, or 1.0).",
            fix=f'Add "{CLIPPING}": "auto", so that {norm} is in force.',
            at=deepspeed.place,
        )

"""Mistakes of batch sizes and lengths of a run: the batch finder, sizes that tile badly, steps against epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from hf_efficient.checks.check import check, version
from hf_efficient.checks.rules.compile import sizes
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, Settings

TILE = 8
"""Tensor cores multiply tiles whose sides are multiples of 8 in 16-bit precision; A100-class cards prefer 64."""


@check({"transformers": ">=4.20"}, seen="read source")
def batch_finder_changes_the_effective_batch(
    trainer: Settings, effective: dict[str, Any], machine: Settings = NOTHING
) -> Iterator[Finding]:
    """Find auto_find_batch_size: the effective batch becomes whatever fits, and accumulation is not adjusted.

    After an out-of-memory error accelerate tries int(size * 0.9) (utils/memory.py, since 1.10; half the size before),
    the Trainer starts its loop again on weights that the failed try has trained, and gradient_accumulation_steps
    stays. So the batch that the learning rate was chosen for is left, for one that the card decides. With ZeRO-3 it
    does not work at all.
    """
    if not trainer.on("auto_find_batch_size"):
        return
    size, steps = trainer.number("per_device_train_batch_size"), trainer.number("gradient_accumulation_steps")
    at = trainer.where("auto_find_batch_size")
    whole = isinstance(size, int) and isinstance(steps, int) and size > 0 and steps > 0
    if not whole:
        yield warning(
            "auto_find_batch_size=True",
            why="The effective batch becomes what fits the card, since gradient_accumulation_steps is not adjusted.",
            fix="Find the size once, then write per_device_train_batch_size and gradient_accumulation_steps.",
            at=at,
        )
        return
    knob = effective.get("effective_batch")
    known = knob is not None and isinstance(knob.value, int)
    total = knob.value if knob is not None and known else size * steps
    whose = "" if known else " per device"
    used = version("accelerate", machine)
    tried = sizes(size) if used is None or used >= Version("1.10") else [size // 2**i for i in range(4) if size // 2**i]
    ranks = max(total // (size * steps), 1)
    second = tried[1] if len(tried) > 1 else size
    yield warning(
        f"auto_find_batch_size=True, per_device_train_batch_size={size}, gradient_accumulation_steps={steps}",
        why=f"The effective batch is {total}{whose} only if {size} rows fit. Otherwise the finder tries "
        f"{' -> '.join(map(str, tried))}, accumulation stays at {steps} (an effective batch of "
        f"{second * steps * ranks} after one failure), and each try goes on from the weights that the failed one left.",
        fix=f"Leave auto_find_batch_size out and keep the effective batch of {total}{whose}: {_splits(size, steps)}.",
        at=at,
    )


def _splits(size: int, steps: int) -> str:
    """Return the smaller batches that keep the product of batch and accumulation."""
    halves = [size // 2**i for i in range(1, 4) if size % 2**i == 0] or [1]
    ways = [f"per_device_train_batch_size={h} with gradient_accumulation_steps={size * steps // h}" for h in halves]
    return ", or ".join(ways[:2])


@check({"transformers": ">=4.40"}, seen="read source")
def batch_finder_with_zero_3(trainer: Settings, zero: Settings) -> Iterator[Finding]:
    """Find auto_find_batch_size with ZeRO stage 3: the Trainer refuses it.

    Trainer raises ValueError while it makes its accelerator, since the engine's partitioned weights cannot be made anew
    for another batch size.
    """
    if trainer.on("auto_find_batch_size") and zero.get("stage") == 3:
        yield error(
            "auto_find_batch_size=True with ZeRO stage 3",
            why="Trainer raises ValueError: the finder does not work with ZeRO-3.",
            fix="Write per_device_train_batch_size and gradient_accumulation_steps, or use stage 2.",
            at=trainer.where("auto_find_batch_size"),
        )


@check(seen="read source")
def vocabulary_no_multiple_of_8(model: Settings, effective: dict[str, Any]) -> Iterator[Finding]:
    """Find a vocabulary whose size tensor cores cannot tile, in 16-bit training.

    The largest multiplication of a small language model has the vocabulary as one side. In fp16 and bf16 tensor cores
    want multiples of 8 (64 on A100-class cards); other sizes run slower. Only worth knowing: resizing makes new rows.
    """
    words = model.get("vocab_size")
    precision = effective.get("precision")
    half = precision is not None and precision.value in ("bf16", "fp16")
    if half and isinstance(words, int) and not isinstance(words, bool) and words > 0 and words % TILE:
        yield info(
            f"vocab_size={words} is no multiple of {TILE}",
            why="Tensor cores multiply 16-bit tiles of 8 (64 on A100-class cards): the head is slower than it need be.",
            fix=f"model.resize_token_embeddings({words}, pad_to_multiple_of=64) makes it {-(-words // 64) * 64}.",
            at=model.where("vocab_size"),
        )


@check({"transformers": ">=4.0"}, seen="read source")
def steps_beside_epochs(trainer: Settings) -> Iterator[Finding]:
    """Find max_steps and num_train_epochs both written out: max_steps alone counts.

    Trainer logs it and takes max_steps (trainer.py); the schedule ends there too.
    """
    steps = trainer.number("max_steps")
    if steps > 0 and trainer.said("num_train_epochs") and trainer.number("num_train_epochs") > 0:
        yield info(
            f"max_steps={steps} and num_train_epochs={trainer.get('num_train_epochs')} are both given",
            why=f"max_steps wins: the run ends after {steps} updates, wherever in an epoch that is.",
            fix="Leave out the one that is not meant (max_steps=-1 lets the epochs count).",
            at=trainer.where("max_steps"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def warmup_of_one_update(trainer: Settings) -> Iterator[Finding]:
    """Find warmup_steps=1.0, which reads like the whole run.

    warmup_steps of 1 or more are updates, below 1 a share of the run (TrainingArguments.get_warmup_steps). So 1.0 is
    one update and not the whole run.
    """
    warm = trainer.number("warmup_steps")
    if isinstance(warm, float) and warm == 1.0 and trainer.said("warmup_steps"):
        yield info(
            "warmup_steps=1.0 is one update",
            why="Only numbers below 1 are a share of the run; 1.0 is no whole run.",
            fix="Write warmup_steps=1 for one update, or a share such as warmup_steps=0.1.",
            at=trainer.where("warmup_steps"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def interval_no_whole_number(trainer: Settings) -> Iterator[Finding]:
    """Find logging_steps, eval_steps or save_steps that are a fraction above 1, and logging_steps=0.

    Below 1 they are a share of the run, from 1 on a number of updates, which must be whole: the arguments raise
    ValueError. logging_steps=0 with logging_strategy="steps" raises too.
    """
    for name, strategy in (
        ("logging_steps", "logging_strategy"),
        ("eval_steps", "eval_strategy"),
        ("save_steps", "save_strategy"),
    ):
        value = trainer.number(name)
        if trainer.text(strategy) != "steps" or not trainer.said(name):
            continue
        if 1 < value < 10**15 and value != int(value):
            yield error(
                f"{name}={value} is neither a share nor a number of updates",
                why="The arguments raise ValueError: from 1 on it must be whole.",
                fix=f"Write {name}={int(value)}, or a share of the run below 1.",
                at=trainer.where(name),
            )
        elif name == "logging_steps" and value == 0:
            yield error(
                'logging_steps=0 with logging_strategy="steps"',
                why="The arguments raise ValueError.",
                fix='Write logging_steps=1 or more, or logging_strategy="no".',
                at=trainer.where(name),
            )

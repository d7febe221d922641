"""Arguments that the release does not know: misspelled names, values that are no choice, values of the wrong type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from math import isfinite
from typing import Any

from hf_efficient.checks.check import check, version
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.follow import Symbol
from hf_efficient.reading.installed import fields, trainer_fields, tree
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.renames import FIELDS, OPTIMIZERS, SFT
from hf_efficient.wording import listed, nearest

ENUMS = {
    "eval_strategy": ("trainer_utils.py", "IntervalStrategy"),
    "logging_strategy": ("trainer_utils.py", "IntervalStrategy"),
    "save_strategy": ("trainer_utils.py", "SaveStrategy"),
    "hub_strategy": ("trainer_utils.py", "HubStrategy"),
    "lr_scheduler_type": ("trainer_utils.py", "SchedulerType"),
    "optim": ("training_args.py", "OptimizerNames"),
}
"""Field -> file and class of transformers that list its values."""
LIKELY = {"False": "no", "adamw": "adamw_torch_fused", "adam": "adamw_torch_fused", "AdamW": "adamw_torch_fused"}
SAMPLING = ("random", "sequential", "group_by_length", "batch_rebalance")
ALIKE = 0.85
MOST = 20
"""Strange names told of one file."""


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def unknown_argument(
    trainer: Settings, sft: Settings = NOTHING, script: Script | None = None, machine: Settings = NOTHING
) -> Iterator[Finding]:
    """Find names that are no field of TrainingArguments or SFTConfig, with the nearest one.

    The arguments are a dataclass: a name that it lacks raises TypeError. The fields are those of the installed release,
    and nothing is said where the setup names another one. A class that a script derives may have fields of its own, so
    there, and in files whose reader is unknown, only near misses of a field are told.
    """
    if not _installed_release(machine):
        return
    known = set(trainer_fields(bool(sft)))
    more = known | set(trainer_fields(True)) | set(FIELDS) | set(SFT) | OTHERS
    exact = _class_of(trainer, script)
    strange = [name for name in trainer if name not in more and not name.startswith("_")]
    for name in strange[:MOST]:
        close = nearest(name, known)
        alike = bool(close) and SequenceMatcher(None, name, close).ratio() >= ALIKE
        if not (exact or (alike and script is None)):
            continue
        level = error if exact or alike else warning
        yield level(
            f"{exact or 'The arguments'} have no field {name}",
            why="Making them raises TypeError: the field is unknown to the installed release.",
            fix=f"Did you mean {close}?" if close else "Leave it out, or put it where it is read.",
            at=trainer.where(name),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def unknown_accelerator_config_key(trainer: Settings, machine: Settings = NOTHING) -> Iterator[Finding]:
    """Find keys of accelerator_config that AcceleratorConfig does not have.

    The dictionary becomes AcceleratorConfig(**dictionary) while the arguments are made (TypeError for a strange key).
    """
    part = trainer.part("accelerator_config")
    known = fields("transformers", "trainer_pt_utils.py", "AcceleratorConfig") if part else {}
    if not known or not _installed_release(machine):
        return
    for name in part:
        if name not in known:
            close = nearest(name, known)
            yield error(
                f"accelerator_config has no key {name}",
                why="Making the arguments raises TypeError.",
                fix=f"Did you mean {close}?" if close else f"The keys are {listed(known)}.",
                at=part.where(name),
            )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def wrong_choice(trainer: Settings, machine: Settings = NOTHING) -> Iterator[Finding]:
    """Find values that are none of a field's choices: eval_strategy, save_strategy, lr_scheduler_type, optim.

    The arguments turn these fields into enumerations and raise ValueError for another value. YAML reads a bare `no` as
    false, which is no choice either. train_sampling_strategy is not tested there: an unknown value shuffles, in silence
    (trainer.py, _get_train_sampler).
    """
    for name in ENUMS:
        value = trainer.get(name)
        known = choices(*ENUMS[name]) if trainer.said(name) and _installed_release(machine) else ()
        if not known or not isinstance(value, str | bool | int | None) or isinstance(value, Symbol):
            continue
        if value in known or value in OPTIMIZERS:
            continue
        plain = LIKELY.get(str(value)) or nearest(str(value), known)
        quoted = f' In YAML write {name}: "no", with the quotes.' if value is False else ""
        yield error(
            f"{name}={value!r} is none of its choices",
            why="Making the arguments raises ValueError.",
            fix=f"{f'Did you mean {plain!r}? ' if plain else ''}{name} may be {listed(known[:12], 'or')}.{quoted}",
            at=trainer.where(name),
        )
    how = trainer.text("train_sampling_strategy")
    if how and trainer.said("train_sampling_strategy") and how not in SAMPLING and not isinstance(how, Symbol):
        yield error(
            f"train_sampling_strategy={how!r} is none of its choices",
            why="No error says so: the Trainer shuffles at random, as if nothing had been asked for.",
            fix=f"Write {listed(map(repr, SAMPLING), 'or')}.",
            at=trainer.where("train_sampling_strategy"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def text_where_a_number_belongs(trainer: Settings, script: Script | None = None) -> Iterator[Finding]:
    """Find strings where a number or a truth value belongs, such as learning_rate="1e-5" or bf16="false".

    YAML 1.1 reads 1e-5 (no dot) as a string, and TrainingArguments do not convert. Most fields are compared or
    multiplied only in train(), which fails there with TypeError; a flag given as "false" is true, since every
    string with letters is. A parser that converts (TrlParser, the command line) makes no trouble; where the reader of
    a YAML file is unknown this is a warning.
    """
    stock = trainer_fields()
    yaml = trainer.place.file.endswith((".yaml", ".yml"))
    converts = script is not None and bool(script.named("TrlParser"))
    for name in trainer:
        value, default = trainer.get(name), stock.get(name)
        if not isinstance(value, str) or isinstance(value, Symbol) or (converts and _from_file(trainer, name)):
            continue
        level = warning if yaml and script is None else error
        if _is_number(default) and (number := _number(value)) is not None:
            yield level(
                f"{name}={value!r} is a string and not a number",
                why="The arguments keep the string, and train() fails with TypeError where it calculates with it.",
                fix=f"Write {name}={number}{' (in YAML with a dot: 1.0e-5)' if 'e' in value.lower() else ''}.",
                at=trainer.where(name),
            )
        elif isinstance(default, bool) and value.lower() in ("true", "false", "yes", "no", "0", "1", "on", "off"):
            yield level(
                f"{name}={value!r} is a string and not a truth value",
                why="A string that is not empty counts as true, whatever it says.",
                fix=f"Write {name}={value.lower() in ('true', 'yes', '1', 'on')}, without quotes.",
                at=trainer.where(name),
            )


NUMBERS = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "max_grad_norm", "num_train_epochs",
    "warmup_steps",
)  # fmt: skip
WHOLE = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def impossible_number(trainer: Settings) -> Iterator[Finding]:
    """Find numbers with which no training starts: none, a fraction, zero or less where a positive number is needed.

    Batch sizes and accumulation must be whole and at least 1 (else a division by zero, or DataLoader's ValueError),
    max_steps whole even where written 100.0, learning_rate and warmup_steps not negative; max_grad_norm=None fails in
    the comparison, 0 is what turns clipping off.
    """
    for name in dict.fromkeys((*NUMBERS, *WHOLE, "max_steps")):
        if not trainer.said(name):
            continue
        value, number = trainer.get(name), trainer.number(name)
        if value is None and name in NUMBERS:
            yield _impossible(trainer, name, "0 turns clipping off" if name == "max_grad_norm" else "Leave it out")
        elif name in (*WHOLE, "max_steps") and isinstance(value, float):
            yield _impossible(trainer, name, f"Write {name}={max(int(value), 1) if isfinite(value) else 1}")
        elif name in WHOLE and number < 1:
            yield _impossible(trainer, name, f"Write {name}=1 or more")
        elif name in ("learning_rate", "warmup_steps") and number < 0:
            yield _impossible(trainer, name, "Write a number of 0 or more")


def _impossible(trainer: Settings, name: str, fix: str) -> Finding:
    return error(
        f"{name}={trainer.get(name)!r} cannot be trained with",
        why="The arguments or train() stop with an error, because this is not a number that they can work with.",
        fix=f"{fix}.",
        at=trainer.where(name),
    )


OTHERS = {
    "sortish_sampler",
    "predict_with_generate",
    "generation_max_length",
    "generation_num_beams",
    "generation_config",
}
"""Fields of Seq2SeqTrainingArguments."""


@cache
def choices(path: str, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration of the installed transformers, as its source says; empty: not found."""
    module = tree("transformers", path)
    body = [node for node in (module.body if module else ()) if isinstance(node, ast.ClassDef) and node.name == name]
    values = [stmt.value for stmt in (body[0].body if body else ()) if isinstance(stmt, ast.Assign)]
    return tuple(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))


def _installed_release(machine: Settings) -> bool:
    """Is the release that runs the one whose source is read here?"""
    here = version("transformers", None)
    return here is not None and version("transformers", machine) == here


def _class_of(trainer: Settings, script: Script | None) -> str:
    """Return the name of the arguments' class where it is known to be the stock one."""
    for call in script.named("TrainingArguments", "SFTConfig") if script is not None else ():
        if call.place == trainer.place and call.name.startswith(("transformers.", "trl.")):
            return call.method
    return ""


def _from_file(trainer: Settings, name: str) -> bool:
    return not trainer.where(name).file.endswith(".py")


def _is_number(default: Any) -> bool:
    return isinstance(default, int | float) and not isinstance(default, bool)


def _number(text: str) -> str | None:
    try:
        return repr(float(text)) if not text.strip().lstrip("-").isdigit() else text.strip()
    except ValueError:
        return None

"""Mistakes in the `optim` of TrainingArguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.installed import tree
from hf_efficient.reading.settings import Settings
from hf_efficient.renames import OPTIMIZERS
from hf_efficient.wording import nearest

PACKAGES = {
    "bitsandbytes": "adamw_bnb adamw_8bit paged_ ademamix lion_ rmsprop_bnb",
    "galore_torch": "galore_",
    "apollo_torch": "apollo_",
    "lomo_optim": "lomo adalomo",
    "grokadamw": "grokadamw",
    "schedulefree": "schedule_free_",
    "torch-optimi": "stable_adamw",
    "torchao": "adamw_torch_4bit adamw_torch_8bit",
}
"""Package to the beginnings of the optimizers that it brings, seen in transformers 5.24, trainer_optimizer.py."""


@cache
def known_optimizers() -> tuple[str, ...]:
    """Return the values of `optim` that the installed transformers knows; empty where it cannot be read."""
    module = tree("transformers", "training_args.py")
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef) and node.name == "OptimizerNames":
            values = [part.value for part in node.body if isinstance(part, ast.Assign)]
            return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))
    return ()


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def optimizer_unknown(trainer: Settings) -> Iterator[Finding]:
    """Find an `optim` that the installed transformers does not know.

    TrainingArguments raises ValueError ("... is not a valid OptimizerNames"). Of names that transformers once knew,
    such as adamw_hf, renamed-optimizer tells.
    """
    optim, known = trainer.text("optim"), known_optimizers()
    name = optim.rpartition("OptimizerNames.")[2]
    if not optim or not known or name in known or name.lower() in known or "." in name or optim in OPTIMIZERS:
        return
    close = nearest(optim, known)
    yield error(
        f"optim={optim!r}",
        why="The installed transformers has no such optimizer: TrainingArguments raises ValueError.",
        fix=f"Set optim={close!r}." if close else f"Set one of {', '.join(known[:6])}, ...",
        at=trainer.where("optim"),
    )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def optimizer_package_missing(trainer: Settings, machine: Settings) -> Iterator[Finding]:
    """Find an `optim` whose package the machine's list of packages says is not there.

    The Trainer imports it when train() makes the optimizer. Only a setup that lists `machine.packages` with an empty
    version (or null) for the package says so.
    """
    optim, packages = trainer.text("optim"), machine.get("packages")
    if not isinstance(packages, Mapping):
        return
    for package, starts in PACKAGES.items():
        spelled = [key for key in packages if str(key).replace("-", "_") == package.replace("-", "_")]
        if optim and optim.startswith(tuple(starts.split())) and spelled and not packages[spelled[0]]:
            yield error(
                f"optim={optim!r} without the package {package}",
                why="train() raises when it makes the optimizer: the package is not installed.",
                fix=f"pip install {package.replace('_', '-')}, or set optim='adamw_torch_fused'.",
                at=trainer.where("optim"),
            )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def optim_args_unreadable(trainer: Settings) -> Iterator[Finding]:
    """Find optim_args that Trainer cannot split.

    It is one string, "key=value,key=value" (trainer_optimizer.py, _parse_optim_args): a dict has no replace(), and a
    part without exactly one "=" cannot be unpacked. Both raise when train() makes the optimizer.
    """
    value = trainer.get("optim_args")
    if isinstance(value, Mapping):
        text = ",".join(f"{key}={one}" for key, one in value.items())
        why = "It is read as a string; a dict has no replace(): AttributeError when train() makes the optimizer."
    elif isinstance(value, str) and value and any(part.count("=") != 1 for part in value.split(",")):
        text, why = re.sub(r"\s*[:;]\s*", "=", value), "Each part must be key=value: ValueError when train() starts."
    else:
        return
    yield error(
        f"optim_args={value!r}",
        why=why,
        fix=f'Write one string of key=value parts with commas between: optim_args="{text}".',
        at=trainer.where("optim_args"),
    )


@check({"transformers": ">=5.0"}, seen="read source")
def optim_args_ignored(trainer: Settings) -> Iterator[Finding]:
    """Find optim_args beside an optimizer that reads none.

    torch's AdamW, Adafactor (which Trainer fixes at relative_step=False and scale_parameter=False), and bitsandbytes'
    AdamW and Lion take what TrainingArguments have fields for and nothing of optim_args (trainer_optimizer.py).
    """
    optim, given = trainer.text("optim").rpartition(".")[2].lower(), trainer.text("optim_args")
    bnb = optim in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit") or "lion" in optim
    if given and (bnb or optim in ("adamw_torch", "adamw_torch_fused", "adafactor")):
        yield error(
            f"optim_args={given!r} with optim={optim!r}",
            why=f"Trainer reads nothing of optim_args for {optim}: what it says is ignored in silence.",
            fix="Use adam_beta1, adam_beta2, adam_epsilon and weight_decay of TrainingArguments; for other options "
            "hand the optimizer over: Trainer(optimizer_cls_and_kwargs=(Class, {...})).",
            at=trainer.where("optim_args"),
        )


@check({"transformers": ">=5.0"}, seen="read source")
def layerwise_optimizer_limits(trainer: Settings, processes: int | None = None) -> Iterator[Finding]:
    """Find GaLore or APOLLO without target modules, or layerwise ones with accumulation or several processes.

    Trainer raises for each when it makes the optimizer (trainer_optimizer.py).
    """
    optim, count = trainer.text("optim"), trainer.number("gradient_accumulation_steps")
    if not optim.startswith(("galore_", "apollo_")):
        return
    reasons = []
    if trainer.get("optim_target_modules") is None:
        reasons.append('it needs optim_target_modules (such as "all-linear")')
    if optim.endswith("_layerwise") and count > 1:
        reasons.append(f"layerwise optimizers refuse gradient_accumulation_steps={count}")
    if optim.endswith("_layerwise") and (processes or 1) > 1:
        reasons.append(f"layerwise optimizers refuse {processes} processes")
    if reasons:
        yield error(
            f"optim={optim!r}",
            why=f"train() raises when it makes the optimizer: {'; '.join(reasons)}.",
            fix=f'Set optim={optim.removesuffix("_layerwise")!r} with optim_target_modules="all-linear".',
            at=trainer.where("optim"),
        )


@check({"transformers": ">=4.42"}, seen="read source")
def schedule_free_with_a_schedule(trainer: Settings) -> Iterator[Finding]:
    """Find a schedule-free optimizer beside a decaying schedule.

    Its averaging takes the place of the schedule. With lr_scheduler_type at its default "linear" the rate is decayed
    all the same, which the method is not made for; warmup_steps it takes over itself.
    """
    optim, kind = trainer.text("optim"), trainer.text("lr_scheduler_type")
    if optim.startswith("schedule_free_") and kind and not kind.lower().endswith(("constant", "constant_with_warmup")):
        yield warning(
            f"optim={optim!r} with lr_scheduler_type={kind!r}",
            why="The weights are averaged in place of a decay, and the schedule decays the rate on top.",
            fix='Set lr_scheduler_type="constant" (warmup_steps stays).',
            at=trainer.where("lr_scheduler_type"),
        )

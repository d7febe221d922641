"""Which classes hold training arguments, are trainers, optimizers or schedulers: by name, import and base classes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any

from hf_efficient.reading import installed
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import UNKNOWN

OTHER_TRAINERS = ("pytorch_lightning", "lightning", "pl", "keras", "tokenizers", "composer", "spacy", "fastai")
TRL = (
    "SFT",
    "DPO",
    "GRPO",
    "RLOO",
    "KTO",
    "Reward",
    "ORPO",
    "CPO",
    "PPO",
    "GKD",
    "BCO",
    "PRM",
    "OnlineDPO",
    "XPO",
    "NashMD",
)
"""What the configurations and trainers of trl begin with."""
TRL_DEFAULTS: Mapping[str, Any] = {"logging_steps": 10, "gradient_checkpointing": True, "bf16": None}
"""What trl 1.x sets otherwise than transformers, where no installed trl says it (trainer/base_config.py)."""


def ancestors(script: Script, name: str) -> list[str]:
    """Return a class's own dotted name and those of its bases, as far as this script defines them."""
    found: list[str] = []
    waiting = [name]
    while waiting and len(found) < 50:
        one = waiting.pop(0)
        if one in found:
            continue
        found.append(one)
        defined = script.classes.get(one)
        waiting += [script.full_name(dotted(base)) for base in (defined.bases if defined else ()) if dotted(base)]
    return found


def arguments_class(script: Script, name: str) -> str:
    """Return the class of training arguments that a class is or is made from, or an empty string."""
    for one in ancestors(script, name):
        short = one.rpartition(".")[2]
        if one in script.classes:
            continue
        if short.endswith("TrainingArguments") or (short.endswith("Config") and _is_trl(one, short)):
            return short
    return ""


def _is_trl(full: str, short: str) -> bool:
    named = short.removesuffix("Config") in TRL and (full.startswith("trl") or "." not in full)
    return named or (full.startswith("trl.") and bool(config_fields(short)))


def is_trainer(script: Script, name: str) -> str:
    """Return the class of Trainer that a class is or is made from, or an empty string."""
    for one in ancestors(script, name):
        short = one.rpartition(".")[2]
        if one not in script.classes and short.endswith("Trainer") and short[0].isupper():
            return "" if one.partition(".")[0] in OTHER_TRAINERS else short
    return ""


def trainer_config(trainer: str) -> str:
    """Return the class of arguments that a Trainer makes for itself where it is given none."""
    stem = trainer.removesuffix("Trainer")
    if stem in TRL or config_fields(f"{stem}Config"):
        return f"{stem}Config"
    return "Seq2SeqTrainingArguments" if stem == "Seq2Seq" else "TrainingArguments"


def defaults_of(arguments: str) -> dict[str, Any]:
    """Return the defaults of a class of training arguments: the installed release's."""
    every = dict(installed.trainer_fields())
    if arguments.endswith("Config"):
        every |= {**TRL_DEFAULTS, **config_fields(arguments)}
    return {name: value for name, value in every.items() if not name.startswith("_")}


def is_sft(arguments: str) -> bool:
    """Is this class SFTConfig, or one that trl makes from it?"""
    return arguments == "SFTConfig"


@cache
def config_fields(name: str) -> Mapping[str, Any]:
    """Return the fields that an installed configuration of trl has over TrainingArguments; empty where it is none."""
    here = installed.folder("trl")
    stem = name.removesuffix("Config").lower()
    if here is None or not name.endswith("Config"):
        return {}
    every = [*here.glob("trainer/*_config.py"), *here.glob("experimental/*/*_config.py")]
    paths = [path for path in every if path.name.removesuffix("_config.py").replace("_", "") == stem]
    if not paths:
        return {}
    path = str(paths[0].relative_to(here))
    bases = _bases(path, name)
    if not any(base == "_BaseConfig" or base.endswith("Config") for base in bases):
        return {}
    found = dict(installed.fields("trl", "trainer/base_config.py", "_BaseConfig"))
    for base in bases:
        found |= config_fields(base) if base not in ("_BaseConfig", name) else {}
    return found | dict(installed.fields("trl", path, name))


def _bases(path: str, name: str) -> list[str]:
    tree = installed.tree("trl", path)
    classes = [node for node in (tree.body if tree else ()) if isinstance(node, ast.ClassDef) and node.name == name]
    return [dotted(base).rpartition(".")[2] for base in (classes[0].bases if classes else ())]


def class_values(script: Script, name: str) -> dict[str, tuple[Any, ast.AST]]:
    """Return what a class of the script, and its bases there, give to annotated fields, with the nodes that say it."""
    found: dict[str, tuple[Any, ast.AST]] = {}
    for one in reversed(ancestors(script, name)):
        for stmt in script.classes[one].body if one in script.classes else ():
            if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and stmt.value is not None:
                found[stmt.target.id] = (_default(script, stmt.value), stmt)
    return found


def _default(script: Script, node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return script.value(node)
    said = {keyword.arg: keyword.value for keyword in node.keywords}
    if "default" in said:
        return script.value(said["default"])
    factory = said.get("default_factory")
    return script.value(factory.body) if isinstance(factory, ast.Lambda) else UNKNOWN

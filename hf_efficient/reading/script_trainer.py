"""TrainingArguments of a script, and every class made from it, each with what the script does to it afterwards."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hf_efficient.reading.flow import start
from hf_efficient.reading.lineage import argument, certain, inside, lineage, possible
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_classes import (
    ancestors,
    arguments_class,
    class_values,
    defaults_of,
    is_sft,
    is_trainer,
    trainer_config,
)
from hf_efficient.reading.script_values import nested_places, put, sure
from hf_efficient.reading.settings import UNKNOWN, Settings

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
SECOND = ("DPOTrainer", "GRPOTrainer", "RLOOTrainer", "KTOTrainer", "OnlineDPOTrainer", "CPOTrainer")
"""Trainers with another parameter between `model` and `args`."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """One object of training arguments that a script makes."""

    settings: Settings
    sft: bool
    call: Call | None
    """The call that makes it; None where the Trainer makes it itself."""


def trainers(script: Script) -> list[Call]:
    """Return the calls that make a Trainer."""
    return [call for call in script.calls if _makes(script, call) and possible(script, call.around, call.node)]


def _makes(script: Script, call: Call) -> bool:
    return bool(call.method) and call.method[0].isupper() and bool(is_trainer(script, call.name))


def arguments_of(script: Script, trainer: Call) -> list[Arguments]:
    """Return the alternatives of a Trainer's arguments."""
    kind = is_trainer(script, trainer.name)
    node = argument(trainer, "args", 2 if kind in SECOND else 1)
    own = trainer_config(kind)
    hidden = trainer.open or "args" in trainer.keywords or own_init(script, trainer)
    none = script.value(node, inside(trainer)) is None if node is not None else not hidden
    found = lineage(script, node, inside(trainer), methods=frozenset({"__getitem__"}))
    ends = sorted(found.ends, key=lambda call: start(call.node))
    made = [one for call in ends if (one := read(script, call, found.names)) is not None]
    only = every(script, 2) if not made else []
    if made or (len(only) == 1 and not none):
        return made or only
    return [Arguments(_settings(own, Settings(place=trainer.place, open=not none)), is_sft(own), None)]


def own_init(script: Script, trainer: Call) -> bool:
    """Does the script's own class of Trainer take other arguments than its base?"""
    return any(f"{name}.__init__" in script.functions for name in ancestors(script, trainer.name))


def every(script: Script, most: int) -> list[Arguments]:
    """Return the objects of training arguments that a script makes, whoever gets them: at most so many."""
    made: list[Arguments] = []
    for call in script.calls:
        if len(made) < most and possible(script, call.around, call.node):
            target = call.target
            one = read(script, call, {target} if target else set())
            made += [one] if one is not None else []
    return made


def read(script: Script, call: Call, names: set[str]) -> Arguments | None:
    """Return the training arguments that a call makes, or None where it makes something else."""
    if call.method in ("replace", "deepcopy", "copy"):
        return None
    declared: dict[str, Any] = {}
    name = arguments_class(script, call.name) if call.method[:1].isupper() else ""
    if name:
        settings = _called(script, call, call.name)
    elif call.method in ("training_arguments", "get_training_args", "make_training_arguments"):
        chosen = _passed_class(script, call)
        name = arguments_class(script, chosen) or "TrainingArguments"
        settings = _keywords(script, call, "", ("plan", "args_class"))
        settings.open = True
    elif (parsed := _parsed(script, call)) is not None:
        name, settings = arguments_class(script, parsed), _from_dict(script, call)
        declared = _declared(script, parsed, call).values
    else:
        return None
    _assigned(script, call, names | {call.target}, settings)
    return Arguments(_settings(name, settings, declared), is_sft(name), call)


def _settings(name: str, settings: Settings, declared: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    defaults = defaults_of(name) | dict(declared)
    if name.endswith("Config") and not is_sft(name) and defaults.get("bf16") is None:
        fp16 = settings.values.get("fp16", False)
        defaults["bf16"] = UNKNOWN if fp16 is UNKNOWN else not fp16
    return Settings(
        settings.values, place=settings.place, places=settings.places, open=settings.open, defaults=defaults
    )


def _called(script: Script, call: Call, name: str) -> Settings:
    settings = _declared(script, name, call)
    said = _keywords(script, call, "output_dir", ())
    both = said.over(settings)
    both.place, both.open = call.place, said.open
    return both


def _declared(script: Script, name: str, call: Call) -> Settings:
    """Return the defaults that a class of the script gives to its fields."""
    held = class_values(script, name)
    values = {key: value for key, (value, _) in held.items()}
    places = {key: script.place(node) for key, (_, node) in held.items()}
    return Settings(values, place=call.place, places=places)


def _keywords(script: Script, call: Call, first: str, without: tuple[str, ...]) -> Settings:
    settings = call.settings()
    if first and call.args and first not in settings.values:
        settings.values[first] = call.args[0]
    if first and len(call.args) > 1:
        settings.open = True
    for keyword in call.node.keywords:
        if keyword.arg is None:
            settings.places = nested_places(script, keyword.value, inside(call)) | settings.places
        elif isinstance(settings.values.get(keyword.arg), dict):
            settings.places |= nested_places(script, keyword.value, inside(call), f"{keyword.arg}.")
    for name in without:
        settings.values.pop(name, None)
    return settings


def _passed_class(script: Script, call: Call) -> str:
    value = call.keywords.get("args_class", call.args[1] if len(call.args) > 1 else "")
    return str(value) if isinstance(value, str) else ""


def _parsed(script: Script, call: Call) -> str | None:
    """Return the class of training arguments that a parser's method gives back, or None."""
    if not call.method.startswith("parse_") or not isinstance(call.node.func, ast.Attribute):
        return None
    found = lineage(script, call.node.func.value, inside(call))
    for parser in found.ends:
        node = argument(parser, "dataclass_types", 0)
        if parser.method in PARSERS and node is not None:
            kinds = lineage(script, node, inside(parser)).literals or [(node, inside(parser))]
            parts = [
                part for one, _ in kinds for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])
            ]
            names = [str(script.full_name(ast.unparse(part))) for part in parts]
            return next((name for name in names if arguments_class(script, name)), None)
    return None


def _from_dict(script: Script, call: Call) -> Settings:
    """Return what `parse_dict({...})` gives; other methods read a command line or a file and leave all open."""
    node = argument(call, "args", 0)
    value = script.value(node, inside(call)) if node is not None else UNKNOWN
    if call.method != "parse_dict" or not isinstance(value, dict):
        return Settings(place=call.place, open=True)
    return Settings(value, place=call.place, places=nested_places(script, node, inside(call)))


def _assigned(script: Script, call: Call, names: set[str], settings: Settings) -> None:
    """Lay `args.bf16 = True` over the settings; what is given under an unknown condition is unknown."""
    for name in sorted(names - {""}):
        for given in script.flow.parts.get(name, ()):
            known = certain(script, given.around, given.node)
            if known is False or len(given.keys) != 1 or given.keys == ("?",) or given.at < start(call.node):
                continue
            same = bool(known) or (certain(script, call.around, call.node) is None and given.around == call.around)
            value: Any = script.value(given.value, (*given.around, given.node)) if same else UNKNOWN
            put(settings, given.keys[0], value, script.place(given.node))
        setters = [one for one in script.done_to.get(name, ()) if one.method.startswith("set_")]
        settings.open = settings.open or any(sure(script, one) is not False for one in setters)

"""The adapter that a script trains: its configuration, and how it is put on the model."""

from __future__ import annotations

import ast
from typing import Any

from hf_efficient.reading.flow import Around
from hf_efficient.reading.lineage import Lineage, argument, inside, lineage, words
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_values import merged, nested_places, put, sure
from hf_efficient.reading.settings import UNKNOWN, Settings

NO_PEFT = words(
    """AutoConfig PretrainedConfig BitsAndBytesConfig GenerationConfig QuantizationConfig DataLoaderConfiguration
    ProjectConfiguration GPTQConfig CompileConfig"""
)
KBIT = ("prepare_model_for_kbit_training", "prepare_model_for_int8_training")


def read_peft(script: Script, model: Lineage, trainer: Call | None) -> Settings | None:
    """Return the adapter of a model, or None where it has none."""
    peft = _from_trainer(script, trainer) if trainer is not None else None
    for call in model.calls:
        if call.method == "get_peft_model":
            peft = _put_on(script, call)
        elif call.method == "from_pretrained" and call.receiver.rpartition(".")[2].startswith(("PeftM", "AutoPeft")):
            peft = _loaded(script, call)
        elif call.method == "add_adapter" and len(call.args) + len(call.keywords) > 0:
            peft = _config(script, argument(call, "adapter_config", 0), inside(call), call)
    for call in script.calls:
        if call.method == "add_adapter" and call.receiver in model.names and peft is None:
            peft = _config(script, argument(call, "adapter_config", 0), inside(call), call)
    if peft is not None:
        for call in model.calls:
            if call.method in KBIT:
                _kbit(script, call, peft)
    return peft


def _from_trainer(script: Script, trainer: Call) -> Settings | None:
    node = argument(trainer, "peft_config")
    if node is None or script.value(node, inside(trainer)) is None:
        return None
    return _config(script, node, inside(trainer), trainer)


def _put_on(script: Script, call: Call) -> Settings:
    peft = _config(script, argument(call, "peft_config", 1), inside(call), call)
    if len(call.node.args) == 1 and call.keywords and "peft_config" not in call.keywords:
        peft = call.settings()  # unsloth takes the fields themselves
        peft.values.pop("model", None)
    if sure(script, call) is None:
        peft = Settings(dict.fromkeys(peft, UNKNOWN), place=peft.place, places=peft.places, open=True)
    for key in ("autocast_adapter_dtype", "mixed", "low_cpu_mem_usage", "adapter_name"):
        if key in call.keywords:
            put(peft, key, call.keywords[key], script.place(call.node))
    return peft


def _loaded(script: Script, call: Call) -> Settings:
    """Return an adapter that is loaded: what it holds is in its own file."""
    said = call.settings()
    kept: dict[str, Any] = {
        key: said.values[key] for key in ("is_trainable", "autocast_adapter_dtype") if key in said.values
    }
    kept.setdefault("is_trainable", UNKNOWN if call.open else False)
    return Settings({"class": UNKNOWN, **kept}, place=call.place, places=said.places, open=True)


def _config(script: Script, node: ast.expr | None, around: Around, call: Call) -> Settings:
    """Return the configuration that an expression is."""
    found = lineage(script, node, around, methods=frozenset({"__getitem__"}))
    made = [end for end in found.ends if end.method.endswith("Config") and end.method not in NO_PEFT]
    unsure = any(isinstance(one, ast.Constant) for one, _ in found.literals)
    if not made or len(made) != len(found.ends):
        return Settings(place=call.place, open=True)
    every = [_fields(script, end) for end in made]
    peft = merged(every)
    peft.open = peft.open or found.unknown or unsure
    return peft


def _fields(script: Script, call: Call) -> Settings:
    said = call.settings()
    put(said, "class", call.method, call.place)
    if call.args and "task_type" not in said.values:
        put(said, "task_type", call.args[0], call.place)
    for keyword in call.node.keywords:
        if isinstance(said.values.get(keyword.arg or ""), dict):
            said.places |= nested_places(script, keyword.value, inside(call), f"{keyword.arg}.")
    return said


def _kbit(script: Script, call: Call, peft: Settings) -> None:
    known = sure(script, call)
    if known is False:
        return
    put(peft, "prepared_for_kbit", True if known else UNKNOWN, call.place)
    for key in ("use_gradient_checkpointing", "gradient_checkpointing_kwargs"):
        if key in call.keywords:
            put(peft, key, call.keywords[key] if known else UNKNOWN, call.place)

"""The model that a script trains: how it is loaded, quantized, cast, wrapped, frozen."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from hf_efficient.reading.flow import Around, end, start
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.lineage import WRAPPERS, Lineage, argument, certain, inside, lineage, words
from hf_efficient.reading.models import dtype
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_classes import ancestors
from hf_efficient.reading.script_values import items, literal, merged, put, renamed, sure
from hf_efficient.reading.settings import UNKNOWN, Settings

LOADERS = words("from_pretrained from_config _from_config load_model get_model")
NO_MODELS = ("Tokenizer", "TokenizerFast", "Config", "Processor", "FeatureExtractor", "Collator", "Trainer", "Dataset")
CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
CHECKPOINTING = ("gradient_checkpointing_enable", "activation_checkpointing_enable")
QUANTIZED = ("load_in_4bit", "load_in_8bit")


def read_model(script: Script, node: ast.expr, around: Around) -> tuple[Settings, Lineage]:
    """Return the model that an expression is, and the calls behind it."""
    found = lineage(script, node, around)
    found.names |= _later(script, found)
    found.names |= _parameters(script, found.names)
    text = script.value(node, around)
    if isinstance(text, str) and not found.ends:
        return Settings({"name": text}, place=script.place(node)), found
    every = [_made(script, call) for call in found.ends]
    model = merged(every) if every else Settings(place=script.place(node), open=True)
    model = Settings(model.values, place=model.place, places=model.places, open=model.open or found.unknown)
    if every:
        _treated(script, found, model)
    return model, found


def is_model(script: Script, call: Call) -> bool:
    """Does the call make a model by loading it, or one of a class of the script?"""
    owner = call.receiver.rpartition(".")[2]
    if call.method in ("from_pretrained", "from_config", "_from_config"):
        return bool(owner) and not owner.endswith(NO_MODELS) and not owner.startswith("PeftM")
    return any(one.endswith("Module") for one in ancestors(script, call.name)[1:])


def with_keywords(script: Script, model: Settings, node: ast.expr | None, around: Around) -> None:
    """Lay the keywords of `model_init_kwargs={...}` over a model that is named by a string."""
    value = script.value(node, around)
    held = literal(script, node, around)
    if held is None and not isinstance(value, dict):
        model.open = model.open or (node is not None and value is not None)
        return
    for key, one in items(held).items():
        if key == "quantization_config":
            _quantized(script, model, one, (*around, held) if held is not None else around)
        else:
            name = "load_dtype" if key in ("dtype", "torch_dtype") else key
            put(model, name, value.get(key, UNKNOWN) if isinstance(value, dict) else UNKNOWN, script.place(one))


def _made(script: Script, call: Call) -> Settings:
    """Return what the call that makes the model says."""
    if call.method not in LOADERS:
        return _constructed(script, call)
    said = call.settings()
    owner = call.receiver.rpartition(".")[2]
    name = said.values.pop("pretrained_model_name_or_path", said.values.pop("model_name", None))
    name = name if name is not None else call.args[0] if call.args else None
    loaded = renamed(said, {"torch_dtype": "load_dtype", "dtype": "load_dtype"})
    node = argument(call, "quantization_config")
    if node is not None:
        _quantized(script, loaded, node, inside(call))
    loaded.values.pop("config", None)
    if owner:
        put(loaded, "class", owner, call.place)
    if call.method == "from_pretrained":
        if name is not None:
            put(loaded, "name", name, call.place)
    elif "load_dtype" not in loaded.values:
        put(loaded, "load_dtype", _fresh_dtype(script, call), call.place)
    return loaded


def _fresh_dtype(script: Script, call: Call) -> Any:
    """Return float32 where a configuration is made on the spot: one that is loaded brings its checkpoint's dtype."""
    node = argument(call, "config", 0)
    found = lineage(script, node, inside(call))
    plain = [end.method.endswith("Config") and not {"dtype", "torch_dtype"} & end.keywords.keys() for end in found.ends]
    return "float32" if plain and all(plain) and not found.unknown else UNKNOWN


def _constructed(script: Script, call: Call) -> Settings:
    """Return a model made by its class."""
    name = call.method
    kinds = ancestors(script, call.name)
    own = any(kind.endswith(("Module", "Sequential")) for kind in kinds[1:]) or call.name.startswith("torch.nn.")
    hub = call.name.startswith("transformers.") or any(kind.startswith("transformers.") for kind in kinds[1:])
    values: dict[str, Any] = {"class": name} if name[:1].isupper() else {}
    if own and not hub:
        values |= {"load_dtype": "float32", "own_module": True}
    elif hub and values:
        values["load_dtype"] = _fresh_dtype(script, call)
    else:
        values["load_dtype"] = UNKNOWN
    return Settings(values, place=call.place, places=dict.fromkeys(values, call.place), open=not (own or hub))


def _quantized(script: Script, model: Settings, node: ast.expr, around: Around) -> None:
    """Write the fields of BitsAndBytesConfig, or unknown ones where it cannot be followed."""
    value = script.value(node, around)
    found = lineage(script, node, around)
    model.values.pop("quantization_config", None)
    none = [one for one, _ in found.literals if isinstance(one, ast.Constant) and one.value is None]
    held = [call.settings() for call in found.ends if call.method.endswith("Config")]
    if isinstance(value, dict):
        held = [Settings(value, place=script.place(node))]
    if value is None:
        return
    if not held or none or found.unknown:
        for key in QUANTIZED:
            put(model, key, UNKNOWN, script.place(node))
        return
    said = merged(held)
    kinds = {call.method for call in found.ends if call.method.endswith("Config")}
    put(model, "quantization", kinds.pop() if len(kinds) == 1 else UNKNOWN, script.place(node))
    for key, one in said.values.items():
        put(model, key, one, said.where(key))


def _treated(script: Script, found: Lineage, model: Settings) -> None:
    """Write what is done to the model after it is made: casts, checkpointing, compilation, freezing."""
    first = min((start(call.node) for call in found.ends), default=(0, 0))
    once = list(dict.fromkeys([*found.calls, *done_to(script, found)]))
    for call in sorted(once, key=lambda one: (one.node.end_lineno or 0, one.node.end_col_offset or 0)):
        known = sure(script, call)
        if known is False or (end(call.node) < first and not call.function):
            continue
        for key, value in _effects(script, call).items():
            put(model, key, value if known or _with_its_makers(script, call, found) else UNKNOWN, call.place)
    _attributes(script, found, model)


def _with_its_makers(script: Script, call: Call, found: Lineage) -> bool:
    """Does a call stand under the same conditions as the calls that make the model?"""
    return all(call.guards == end.guards and call.function == end.function for end in found.ends)


def done_to(script: Script, found: Lineage) -> list[Call]:
    """Return the calls of methods of the model, under any of its names."""
    names = {f"{name}{inner}" for name in found.names - {""} for inner in ("", ".module", ".model", ".base_model")}
    every = [call for name in names for call in script.done_to.get(name, ())]
    return [call for call in every if isinstance(call.node.func, ast.Attribute)]


def _effects(script: Script, call: Call) -> dict[str, Any]:
    """Return what one call does to the model."""
    if call.method in CASTS or call.method == "to":
        cast = CASTS.get(call.method) if call.method != "to" else _target_dtype(call)
        lower = {"half": True} if cast in ("float16", "bfloat16") else {"half": False}
        return {"cast_dtype": cast, **lower} if cast is not None else {}
    if call.method in CHECKPOINTING:
        return _checkpointing(script, call)
    if call.method == "compile":
        names = {"mode": "compile_mode", "dynamic": "compile_dynamic", "fullgraph": "compile_fullgraph"}
        return {"compiled": True} | {names[key]: call.keywords[key] for key in names if key in call.keywords}
    if call.method == "prepare_model_for_kbit_training":
        return {"prepared_for_kbit": True}
    if call.method == "requires_grad_":
        value = call.args[0] if call.args else call.keywords.get("requires_grad", True)
        return {"frozen": not value if value is not UNKNOWN else UNKNOWN}
    return {}


def _target_dtype(call: Call) -> Any:
    """Return the dtype that `.to(...)` casts to, UNKNOWN for one that cannot be known, None where it moves only."""
    if "dtype" in call.keywords:
        return dtype(call.keywords["dtype"])
    symbols = [value for value in call.args if isinstance(value, str) and value.startswith("torch.")]
    known = [dtype(value) for value in symbols if dtype(value) is not UNKNOWN]
    return known[0] if known else None


def _checkpointing(script: Script, call: Call) -> dict[str, Any]:
    names = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
    said = next((call.keywords[name] for name in names if name in call.keywords), call.args[0] if call.args else None)
    found: dict[str, Any] = {"activation_checkpointing": True}
    if isinstance(said, dict) and "use_reentrant" in said:
        found["use_reentrant"] = said["use_reentrant"]
    elif said is UNKNOWN or call.open:
        found["use_reentrant"] = UNKNOWN
    return found


def _attributes(script: Script, found: Lineage, model: Settings) -> None:
    """Write `model.config.use_cache = False`."""
    for name in found.names:
        for given in script.flow.parts.get(name, ()):
            known = certain(script, given.around, given.node)
            if given.keys == ("config", "use_cache") and known is not False:
                value = script.value(given.value, (*given.around, given.node)) if known else UNKNOWN
                put(model, "use_cache", value, script.place(given.node))


def _later(script: Script, found: Lineage) -> set[str]:
    """Return the names that wrappers of the model are given: `engine, *_ = deepspeed.initialize(model=model)`."""
    names: set[str] = set()
    for (_, name), every in script.flow.names.items():
        for given in every:
            call = script.call_at.get(id(given.value)) if given.value is not None else None
            if call is not None and (call.method in WRAPPERS or call.method == "prepare"):
                behind = lineage(script, call.node, call.around, index=given.index)
                names |= {name} if behind.ends and set(behind.ends) <= set(found.ends) else set()
    return names


def _parameters(script: Script, names: set[str]) -> set[str]:
    """Return the names that functions of the script give to a model that is passed to them."""
    found: set[str] = set()
    for call in script.calls:
        function = script.functions.get(call.name)
        if function is not None:
            parameters = [one.arg for one in function.args.args]
            passed: Sequence[ast.expr] = call.node.args
            found |= {
                p
                for p, one in zip(parameters, passed, strict=False)
                if isinstance(one, ast.Name) and dotted(one) in names
            }
    return found

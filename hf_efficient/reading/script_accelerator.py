"""Accelerator(...) of a script with its plugins, DeepSpeed's configuration, and the environment that it sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.reading.flow import Around
from hf_efficient.reading.lineage import argument, certain, inside, lineage, possible
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_values import agreed, literal, merged, nested_places, put, sure
from hf_efficient.reading.settings import UNKNOWN, Settings

PLUGINS = {
    "DeepSpeedPlugin": "deepspeed_plugin",
    "FullyShardedDataParallelPlugin": "fsdp_plugin",
    "DataLoaderConfiguration": "dataloader_config",
    "TorchDynamoPlugin": "dynamo_plugin",
    "ProjectConfiguration": "project_config",
}
HANDLERS = {"DistributedDataParallelKwargs": "ddp", "GradScalerKwargs": "grad_scaler", "AutocastKwargs": "autocast"}


def read_accelerator(script: Script) -> Settings | None:
    """Return the keywords of Accelerator(...), or None where the script makes none."""
    made = [call for call in script.calls if call.method in ("Accelerator", "make_accelerator") and call.name[:1]]
    made = [call for call in made if possible(script, call.around, call.node)]
    every = [_accelerator(script, call) for call in made]
    return merged(every) if every else None


def _accelerator(script: Script, call: Call) -> Settings:
    said = call.settings()
    if call.method == "make_accelerator" or call.args:
        said.open = True
    said.values.pop("plan", None)
    for keyword in call.node.keywords:
        name = keyword.arg or ""
        if name in PLUGINS.values():
            _plugin(script, said, name, keyword.value, inside(call))
        elif name == "gradient_accumulation_plugin":
            _accumulation(script, said, keyword.value, inside(call))
        elif name == "kwargs_handlers":
            _handlers(script, said, keyword.value, inside(call))
        elif name == "deepspeed_plugins":
            put(said, "deepspeed_plugin", UNKNOWN, script.place(keyword.value))
    return said


def _plugin(script: Script, said: Settings, name: str, node: ast.expr, around: Around) -> None:
    """Write a plugin's keywords as a mapping under its name."""
    if script.value(node, around) is None:
        return
    found = lineage(script, node, around)
    made = [call for call in found.ends if call.method in PLUGINS]
    if not made or len(made) != len(found.ends) or found.literals:
        put(said, name, UNKNOWN, script.place(node))
        return
    plugin = merged([call.settings() for call in made])
    put(said, name, UNKNOWN if plugin.open else plugin.values, made[0].place)
    for key, place in plugin.places.items():
        said.places[f"{name}.{key}"] = place


def _accumulation(script: Script, said: Settings, node: ast.expr, around: Around) -> None:
    found = lineage(script, node, around)
    steps = [c.keywords.get("num_steps", c.args[0] if c.args else UNKNOWN) for c in found.ends]
    said.values.pop("gradient_accumulation_plugin", None)
    place = found.ends[0].place if found.ends else script.place(node)
    put(said, "gradient_accumulation_steps", agreed(steps), place)
    for call in found.ends[:1]:
        for key in ("adjust_scheduler", "sync_with_dataloader", "sync_each_batch"):
            if key in call.keywords:
                put(said, key, call.keywords[key], call.place)


def _handlers(script: Script, said: Settings, node: ast.expr, around: Around) -> None:
    """Write what the handlers in a list say: `ddp_find_unused_parameters`, `grad_scaler_init_scale`, ..."""
    found = lineage(script, node, around)
    lists = [(one, where) for one, where in found.literals if isinstance(one, ast.List | ast.Tuple)]
    said.values["kwargs_handlers"] = UNKNOWN
    for one, where in lists:
        for part in one.elts if isinstance(one, ast.List | ast.Tuple) else ():
            for call in lineage(script, part, where).ends:
                for key, value in call.keywords.items():
                    if call.method in HANDLERS:
                        put(said, f"{HANDLERS[call.method]}_{key}", value, script.place(call.node))


def read_deepspeed(script: Script, node: ast.expr | None, around: Around) -> tuple[Settings | None, tuple[str, ...]]:
    """Return DeepSpeed's configuration where an expression is a dict, and the files that it names."""
    if node is None:
        return None, ()
    value = script.value(node, around)
    if isinstance(value, str):
        return None, (str(value),)
    files = tuple(_loaded_from(script, node, around))
    if isinstance(value, dict):
        return Settings(
            value, place=script.place(_where(script, node, around)), places=nested_places(script, node, around)
        ), files
    held = literal(script, node, around)
    if held is not None:
        return Settings(place=script.place(held), open=True), files
    return None, files


def _where(script: Script, node: ast.expr, around: Around) -> ast.AST:
    return literal(script, node, around) or node


def _loaded_from(script: Script, node: ast.expr, around: Around) -> Iterator[str]:
    """Yield the files that a value is loaded from: by json.load(open(...)), or json.load within `with open(...)`."""
    for call in lineage(script, node, around).ends:
        if call.method in ("load", "loads", "safe_load", "HfDeepSpeedConfig", "read_text"):
            yield from (one for other in _opened(script, call) for one in other.args[:1] if isinstance(one, str))
            yield from (one for one in call.args[:1] if isinstance(one, str) and call.method == "HfDeepSpeedConfig")


def _opened(script: Script, call: Call) -> list[Call]:
    """Return the calls of open() in a call's arguments, or in the `with` around it."""
    within = [other for other in script.calls if call.node in other.around and other.method in ("open", "Path")]
    blocks = [node for node in call.around if isinstance(node, ast.With)]
    calls = [script.call_at.get(id(item.context_expr)) for block in blocks for item in block.items]
    return within + [other for other in calls if other is not None and other.method == "open"]


def argument_files(script: Script, call: Call) -> Iterator[str]:
    """Yield the files that arguments come from: `parse_json_file("x.json")`, `**json.load(open("x.json"))`."""
    if call.method.startswith("parse_") and call.method.endswith("_file"):
        value = next(iter([*call.args[:1], *call.keywords.values()]), None)
        yield from [str(value)] if isinstance(value, str) else []
    for keyword in call.node.keywords:
        if keyword.arg is None:
            yield from _loaded_from(script, keyword.value, inside(call))


def deepspeed_calls(script: Script) -> Iterator[tuple[ast.expr, Around]]:
    """Yield the configurations that the script hands to DeepSpeed itself."""
    for call in script.calls:
        if call.name == "deepspeed.initialize" or call.method in ("DeepSpeedPlugin", "HfDeepSpeedConfig"):
            if not possible(script, call.around, call.node):
                continue
            names = ("config", "config_params", "hf_ds_config", "config_file_or_dict")
            node = next((n for name in names if (n := argument(call, name)) is not None), None)
            node = node if node is not None or call.method != "HfDeepSpeedConfig" else argument(call, "", 0)
            if node is not None:
                yield node, inside(call)


def read_env(script: Script) -> Settings | None:
    """Return the environment variables that the script sets, or None."""
    env = Settings()
    for given in script.flow.parts.get("os", ()):
        if given.keys[:1] == ("environ",) and len(given.keys) == 2 and given.keys[1] != "?":
            _set(script, env, given.keys[1], given.value, given.around, given.node)
    for given in script.flow.parts.get("environ", ()):
        if len(given.keys) == 1 and script.imports.get("environ") == "os.environ":
            _set(script, env, given.keys[0], given.value, given.around, given.node)
    for call in script.calls:
        if call.name in ("os.environ.setdefault", "os.putenv") and len(call.node.args) == 2:
            if isinstance(call.args[0], str):
                known = sure(script, call) and call.method != "setdefault"
                _set(script, env, call.args[0], call.node.args[1] if known else None, inside(call), call.node)
        elif call.name == "os.environ.update":
            values = call.args[0] if call.args and isinstance(call.args[0], dict) else {}
            for key, value in {**values, **call.keywords}.items():
                put(env, str(key), value if sure(script, call) else UNKNOWN, call.place)
    return env if env.values else None


def _set(script: Script, env: Settings, name: str, value: ast.expr | None, around: Around, node: Any) -> None:
    known = certain(script, around, node)
    if known is not False:
        put(env, name, script.value(value, (*around, node)) if known else UNKNOWN, script.place(node))

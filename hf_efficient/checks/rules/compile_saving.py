"""Checkpoints of a compiled model: keys that begin with `_orig_mod.`, when they are written and when they are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.compile import compiled
from hf_efficient.checks.saved import is_written
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.flow import Around
from hf_efficient.reading.lineage import inside, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_values import sure
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup

PREFIX = "_orig_mod."
REMEDY = "accelerator.unwrap_model(model, keep_torch_compile=False)"


@check({"accelerate": ">=1.0"}, seen="ran on CPU")
def compiled_keys_saved(setup: Setup, script: Script) -> Iterator[Finding]:
    """Find a hand-written loop that saves the weights of a compiled model under keys that begin with `_orig_mod.`.

    torch.compile wraps the model, and the wrapper's state_dict calls it `_orig_mod`. accelerator.get_state_dict,
    accelerator.save_model and accelerator.unwrap_model(...) keep the wrapper (keep_torch_compile=True is their
    default, utils/other.py), so the file does not load into a model that is not compiled; from_pretrained then starts
    from random weights with a warning. save_pretrained without state_dict, accelerator.save_state, model.compile() in
    place, regional compilation and the Trainer write plain keys; a script that cuts the prefix off is left alone.
    """
    if "_orig_mod" in script.source:
        return
    for call, how in _prefixed(setup, script):
        yield warning(
            f"{call.text[:100]} writes keys that begin with {PREFIX}",
            why=f"{how} is the compiled wrapper, which calls the model _orig_mod: no uncompiled model loads that file, "
            "and from_pretrained would take random weights instead.",
            fix=_fix(call),
            at=call.place,
        )


@check({"torch": ">=2.0"}, seen="ran on CPU")
def checkpoint_of_a_wrapper(checkpoint: Settings, script: Script | None = None) -> Iterator[Finding]:
    """Find a checkpoint whose keys carry the prefix of a wrapper: `_orig_mod.` of torch.compile, `module.` of DDP.

    A model without the wrapper knows none of those keys: from_pretrained reports all weights as missing, initialises
    them at random and goes on; load_state_dict raises. It is an error where the script loads with from_pretrained.
    """
    given = checkpoint.get("prefixes")
    prefixes = [str(one) for one in given] if isinstance(given, list | tuple | set) else []
    for prefix, maker in ((PREFIX, "torch.compile"), ("module.", "DistributedDataParallel")):
        if not any(one == prefix or one.startswith(prefix) or f"{one}." == prefix for one in prefixes):
            continue
        loads = script is not None and any(call.method == "from_pretrained" for call in script.calls)
        level = error if loads else warning
        yield level(
            f"The checkpoint's keys begin with {prefix}",
            why=f"It was saved from the wrapper of {maker}. A model without it finds none of its weights: "
            "from_pretrained starts from random ones, load_state_dict raises.",
            fix=f'Rename the keys: {{key.removeprefix("{prefix}"): value for key, value in weights.items()}}, and save '
            f"with {REMEDY} from now on.",
            at=checkpoint.place,
        )


def _prefixed(setup: Setup, script: Script) -> Iterator[tuple[Call, str]]:
    """Yield the calls that write keys of the wrapper, with what they take the keys from."""
    by_accelerate = setup.accelerator is not None and setup.trainer is None and _wraps(setup, script)
    for call in script.calls:
        first = call.node.args[0] if call.node.args else None
        name = first.id if isinstance(first, ast.Name) else ""
        if call.method in ("get_state_dict", "save_model") and name and call.receiver:
            if (by_accelerate and not _plain(script, name)) or _compiled_here(script, first, inside(call)):
                yield call, name
        elif call.method == "state_dict" and is_written(script, call):
            source = call.receiver
            unwrapped = source.endswith("unwrap_model") or _made_by_unwrapping(script, source)
            node = getattr(call.node.func, "value", None)
            ready = any(one.method.startswith("prepare") for one in lineage(script, node, inside(call)).calls)
            ready = ready and not re.search("optim|sched|scaler|loader", source.lower())
            kept = by_accelerate and (unwrapped or ready) and not _drops(script, call)
            if kept or _compiled_here(script, node, inside(call)):
                yield call, "the unwrapped model" if source.endswith("unwrap_model") else source


def _wraps(setup: Setup, script: Script) -> bool:
    """Does accelerate compile the whole model? Regional compilation wraps nothing."""
    plugins = script.named("TorchDynamoPlugin")
    if plugins:
        on = any(str(call.keywords.get("backend", "no")).rpartition(".")[2].lower() != "no" for call in plugins)
        return on and not any("use_regional_compilation" in call.keywords or call.open for call in plugins)
    launch, env = setup.launch or NOTHING, setup.env or NOTHING
    regional = ("dynamo_use_regional_compilation", "dynamo_config.dynamo_use_regional_compilation")
    if any(launch.on(key) for key in regional) or env.on("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"):
        return False
    return compiled(setup, own=False) is not None


def _compiled_here(script: Script, node: ast.expr | None, around: Around) -> bool:
    """Is this the result of torch.compile for sure, also after accelerator.prepare and unwrap_model, which keep it?"""
    behind = lineage(script, node, around).calls
    made = [call for call in behind if call.name == "torch.compile" and sure(script, call)]
    dropped = [
        c for c in behind if c.method == "unwrap_model" and c.keywords.get("keep_torch_compile", True) is not True
    ]
    return bool(made) and not dropped


def _plain(script: Script, name: str) -> bool:
    made = script.made(name)
    return made is not None and made.method == "unwrap_model" and made.keywords.get("keep_torch_compile") is False


def _made_by_unwrapping(script: Script, name: str) -> bool:
    made = script.made(name)
    return made is not None and made.method == "unwrap_model"


def _drops(script: Script, call: Call) -> bool:
    """Is the wrapper dropped where the model is unwrapped, or unclear whether it is?"""
    inner = [c for c in script.calls if c.method == "unwrap_model" and c.node in ast.walk(call.node)]
    made = inner[0] if inner else script.made(call.receiver)
    if made is None:
        return False
    return made.keywords.get("keep_torch_compile", True) is not True or made.open or len(made.args) > 2


def _fix(call: Call) -> str:
    if call.method == "save_model":
        return f"Write {call.receiver}.save_model({REMEDY}, ...)."
    if call.method == "get_state_dict":
        return f"Take the state dict of {REMEDY} instead."
    if call.receiver.endswith("unwrap_model"):
        return f"Unwrap with keep_torch_compile=False: {REMEDY}.state_dict()."
    return f"Save {REMEDY}.state_dict(), or without accelerate model._orig_mod.state_dict()."

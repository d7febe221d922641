"""Checkpoint files that a hand-written loop reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, info, warning
from hf_efficient.reading.lineage import argument, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING
from hf_efficient.reading.setup import Setup


@check({"torch": ">=2.0"}, seen="arithmetic")
def checkpoint_stays_on_gpu(script: Script, setup: Setup) -> Iterator[Finding]:
    """Find a checkpoint that is read onto the GPU and kept there while the loop trains.

    torch.load(..., map_location="cuda"), and without map_location the device it was saved from, puts a second copy of
    the weights, and of the optimizer's moments, on the card; load_state_dict copies out of it, and the dictionary
    lives until its name goes. In fp32 with AdamW that is 4 + 8 bytes per parameter. Not meant: files that hold no
    state to load, names that are deleted or given another value, functions that return before the loop, and Trainer,
    which reads to the CPU.
    """
    if setup.trainer is not None or not script.training_loops:
        return
    for call in script.named("torch.load", "safetensors.torch.load_file", "load_file"):
        name = call.target
        if not name or "." in name or not _kept(script, call, name):
            continue
        place = _device(script, call)
        params = (setup.model or NOTHING).number("params")
        size = f" ({params * 4 / 2**30:.1f} GiB + {params * 8 / 2**30:.1f} GiB here)" if params > 0 else ""
        tell = warning if place == "gpu" else info
        if place != "cpu":
            yield tell(
                f"{call.text} is kept in {name} while the model trains",
                why=f"{'It' if place == 'gpu' else 'Where it was saved from a GPU it'} stays there: in fp32 4"
                f" bytes per parameter of"
                f" weights and 8 of AdamW's moments a second time{size}.",
                fix=f'Load with map_location="cpu" (load_state_dict copies to the GPU), and `del {name}` after'
                f" load_state_dict.",
                at=call.place,
            )


def _kept(script: Script, call: Call, name: str) -> bool:
    """Is the name read into a model or optimizer, in the scope of the training loop, and not given up before it?"""
    loops = [loop for loop in script.training_loops if getattr(loop, "lineno", 0) > call.place.line]
    same = [one for one in script.calls if one.method == "backward" and one.loops and one.loops[-1] in loops]
    if not any(one.function == call.function for one in same):
        return any(
            _kept_from(script, given, one.function) for given in _handed_back(script, call, name) for one in same
        )
    last = min(getattr(loop, "lineno", 0) for loop in loops)
    used = [one for one in script.named("load_state_dict") if any(_reads(arg, name) for arg in one.node.args)]
    gone = [
        node
        for node in ast.walk(script.tree)
        if call.place.line < getattr(node, "lineno", 0) <= last and _ends(node, name)
    ]
    return bool(used) and not gone


def _handed_back(script: Script, call: Call, name: str) -> list[Call]:
    """Return the calls of the function that reads the file, loads it and returns all of it."""
    function = script.functions.get(call.function)
    if function is None:
        return []
    back = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    whole = any(isinstance(value, ast.Name) and value.id == name for value in back)
    loads = [one for one in script.inside(function) if one.method == "load_state_dict" and _uses(one, name)]
    return script.named(call.function) if whole and loads else []


def _kept_from(script: Script, given: Call, function: str) -> bool:
    """Is what a call gives back kept under a name in that function, and not given up?"""
    later = [node for node in ast.walk(script.tree) if getattr(node, "lineno", 0) > given.place.line]
    ended = any(_ends(node, given.target) for node in later)
    return bool(given.target) and given.function == function and not ended


def _uses(call: Call, name: str) -> bool:
    return any(_reads(arg, name) for arg in call.node.args)


def _reads(node: ast.expr, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _ends(node: ast.AST, name: str) -> bool:
    """Does a statement delete the name or give it another value?"""
    targets = node.targets if isinstance(node, ast.Delete | ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _device(script: Script, call: Call) -> str:
    """Return gpu, cpu, or an empty string where the device cannot be known."""
    tensors = call.method == "load_file"
    node = argument(call, "device" if tensors else "map_location", 1)
    if node is None:
        return "cpu" if tensors else "cpu" if call.open else ""
    value = script.value(node, call.around)
    made = [ast.unparse(end.node) for end in lineage(script, node, call.around).ends if end.name == "torch.device"]
    text = value if isinstance(value, str) else made[0] if len(made) == 1 else ast.unparse(node)
    if "cpu" in text and "cuda" in text:
        return ""
    if "cpu" in text or "lambda" in text or "meta" in text:
        return "cpu"
    return "gpu" if "cuda" in text or "xpu" in text else ""

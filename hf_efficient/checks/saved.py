"""Which calls write a state dict to a file: at once, under a name, or as part of a dictionary."""

from __future__ import annotations

import ast

from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script

SAVES = ("save", "save_file", "save_pretrained", "save_model", "dump", "write")


def is_written(script: Script, call: Call) -> bool:
    """Is the call's result handed to something that writes a file, alone or inside a dictionary, also under a name?"""
    outer = [node for node in call.around if isinstance(node, ast.Call)]
    if any(dotted(node.func).rpartition(".")[2] in SAVES for node in outer):
        return True
    name = _name(call)
    writes = [one for one in script.calls if one.method in SAVES and one.node.lineno > call.node.lineno]
    return bool(name) and any(
        isinstance(part, ast.Name) and part.id == name for one in writes for part in ast.walk(one.node)
    )


def _name(call: Call) -> str:
    """Return the name that the result gets, itself or as a value of a dictionary."""
    for number in range(len(call.around) - 1, -1, -1):
        node = call.around[number]
        inner = call.around[number + 1] if number + 1 < len(call.around) else call.node
        if isinstance(node, ast.Assign) and node.value is inner:
            target = node.targets[0]
            base = target.value if isinstance(target, ast.Subscript) else target
            return base.id if isinstance(base, ast.Name) else ""
        if not isinstance(node, ast.Dict | ast.keyword | ast.Call):
            return ""
    return ""

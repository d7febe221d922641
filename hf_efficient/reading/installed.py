"""What the installed releases know, read from their sources and never imported: fields and their defaults."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hf_efficient.reading.follow import follow
from hf_efficient.reading.settings import UNKNOWN


@cache
def folder(package: str) -> Path | None:
    """Return the folder of an installed package, or None. The package is found and not imported."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found and found.origin else None


@cache
def tree(package: str, path: str) -> ast.Module | None:
    """Return the syntax tree of a file of an installed package, or None where there is none to be read."""
    here = folder(package)
    try:
        return ast.parse((here / path).read_text(encoding="utf-8")) if here else None
    except (OSError, SyntaxError, ValueError):
        return None


@cache
def fields(package: str, path: str, name: str) -> Mapping[str, Any]:
    """Return the annotated fields of a class of an installed package with their defaults; empty where it is not there.

    UNKNOWN stands for a default that is no literal. Fields of base classes are not among them.
    """
    module = tree(package, path)
    body = [node for node in (module.body if module else ()) if isinstance(node, ast.ClassDef) and node.name == name]
    found: dict[str, Any] = {}
    for node in body[0].body if body else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = _default(node.value)
    return found


@cache
def keywords(package: str, path: str, function: str) -> Mapping[str, Any]:
    """Return the parameters of a function, or of a class's `__init__` (`Class.__init__`), with their defaults."""
    owner, _, name = function.rpartition(".")
    module = tree(package, path)
    inside: list[ast.stmt] = list(module.body) if module else []
    if owner:
        inside = [
            stmt for node in inside if isinstance(node, ast.ClassDef) and node.name == owner for stmt in node.body
        ]
    for node in inside:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            every = [*node.args.posonlyargs, *node.args.args]
            defaults: list[ast.expr | None] = [None] * (len(every) - len(node.args.defaults)) + [*node.args.defaults]
            pairs = [*zip(every, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
            return {arg.arg: _default(value) for arg, value in pairs if arg.arg != "self"}
    return {}


def _default(node: ast.expr | None) -> Any:
    """Return a default's value, of `field(default=...)` and `Field(...)` too; UNKNOWN where it is no literal."""
    if isinstance(node, ast.Call):
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        first = node.args[0] if node.args else None
        return follow(said.get("default", first), lambda name: None)
    return UNKNOWN if node is None else follow(node, lambda name: None)


def trainer_fields(sft: bool = False) -> Mapping[str, Any]:
    """Return the fields of TrainingArguments with their defaults, or of SFTConfig where that is asked for."""
    every = dict(fields("transformers", "training_args.py", "TrainingArguments"))
    if sft:
        every |= fields("trl", "trainer/base_config.py", "_BaseConfig")
        every |= fields("trl", "trainer/sft_config.py", "SFTConfig")
    return {name: value for name, value in every.items() if not name.startswith("_")}

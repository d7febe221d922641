"""What `from package import *` brings into a script, read from the package's sources and never imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from hf_efficient.reading.installed import tree

PACKAGES = ("transformers", "accelerate", "peft", "trl", "datasets")
LAZY = re.compile(
    r"Auto[A-Z]\w*|[A-Z]\w+(For[A-Z]\w+|Model|PreTrainedModel|Config|Tokenizer|TokenizerFast|Processor|ImageProcessor)"
)
"""Names of transformers' models and their kin, which its `__init__` collects when it is imported."""


def starred(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that a script uses, does not define, and gets from a star import, each with its full name."""
    every = list(nodes)
    packages = [
        node.module
        for node in every
        if isinstance(node, ast.ImportFrom) and not node.level and any(alias.name == "*" for alias in node.names)
    ]
    known = [package for package in packages if package in PACKAGES]
    if not known:
        return
    used = {node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for name in sorted(used - set(_defined(every))):
        for package in reversed(known):
            if name in _public(package) or (package == "transformers" and LAZY.fullmatch(name)):
                yield name, f"{package}.{name}"
                break


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@cache
def _public(package: str) -> frozenset[str]:
    """Return the names in a package's `__init__`: those it imports, and those it lists to be imported when used."""
    module = tree(package, "__init__.py")
    found: set[str] = set()
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(name for name in found if not name.startswith("_"))

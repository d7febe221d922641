"""What the expressions of a script are worth where they stand: names followed through assignments and calls."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hf_efficient.reading.flow import MOST, Around, Flow, Given, scope_of, start
from hf_efficient.reading.follow import Namespace, Resolved, Symbol, follow
from hf_efficient.reading.settings import UNKNOWN

CHANGERS = {"update", "pop", "append", "extend", "insert", "clear", "remove", "setdefault", "popitem"}
"""Methods that change a list or dict; what one of these touches is not followed."""
LIBRARIES = sys.stdlib_module_names | {
    "torch", "transformers", "accelerate", "peft", "trl", "deepspeed", "bitsandbytes", "datasets", "numpy", "torchao",
    "torchvision", "torchaudio", "diffusers", "sentence_transformers", "evaluate", "tokenizers", "liger_kernel",
    "unsloth", "hf_efficient", "torch_optimizer", "lion_pytorch", "galore_torch", "apollo_torch", "schedulefree",
    "timm", "lightning", "pytorch_lightning", "flash_attn", "apex", "optimum", "safetensors",
}  # fmt: skip
"""Modules whose names are what they say; `config.BF16` of the project's own may be anything."""
SIZE = 20_000
"""Parts of the largest value that is kept: `a = [b, b]; b = [c, c]; ...` doubles with every line."""


def bounded(value: Any) -> Any:
    """Return the value, or UNKNOWN where it has too many parts."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > SIZE:
            return UNKNOWN
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return value


def _imported(name: str) -> Symbol | Resolved:
    """Return what an import stands for: a name of a library, or something of a module that cannot be seen."""
    return Symbol(name) if name.partition(".")[0] in LIBRARIES else Resolved(UNKNOWN)


class Values:
    """The values of the names and expressions of a syntax tree."""

    told: Mapping[str, Any] | None = None
    """What `parser.parse_args()` gives; None where no command line is known."""

    def __init__(self, nodes: Sequence[tuple[ast.AST, Around]], imports: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.imports = imports
        self.flow = Flow(nodes)
        self._known: dict[tuple[int, int], Any] = {}

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Return the classes by name."""
        return {node.name: node for node, _ in self.nodes if isinstance(node, ast.ClassDef)}

    def value(self, node: ast.expr | None, around: Around = ()) -> Any:
        """Return what an expression is worth where it stands, or UNKNOWN."""
        found = self._value(node, around)
        return UNKNOWN if isinstance(found, Namespace) else found

    def argument(self, given: Given, name: str) -> list[tuple[ast.expr, Around]]:
        """Return the expressions that calls pass for a parameter; empty where one of them cannot be seen."""
        function = given.node
        if not isinstance(function, ast.FunctionDef):
            return []
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        found: list[tuple[ast.expr, Around]] = []
        for node, around in self._called.get(function.name, ()):
            passed = {keyword.arg: keyword.value for keyword in node.keywords}
            if None in passed or any(isinstance(one, ast.Starred) for one in node.args):
                return []
            passed |= dict(zip(names, node.args, strict=False))
            if name not in passed:
                return []
            found.append((passed[name], around))
        return found

    @cached_property
    def _called(self) -> dict[str, list[tuple[ast.Call, Around]]]:
        found: dict[str, list[tuple[ast.Call, Around]]] = {}
        for node, around in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.setdefault(node.func.id, []).append((node, around))
        return found

    def _value(self, node: ast.expr | None, around: Around) -> Any:
        key = (id(node), id(scope_of(around)))
        if key not in self._known:
            self._known[key] = UNKNOWN
            try:
                self._known[key] = bounded(follow(node, lambda name: self._name(name, node, around)))
            except RecursionError:
                return UNKNOWN
        return self._known[key]

    def _name(self, name: str, node: ast.expr | None, around: Around) -> Symbol | Resolved | None:
        """Return what a name stands for in an expression."""
        reaching = self.flow.reaching(name, around, start(node) if node is not None else (0, 0))
        if not reaching and name in self.classes and name not in self.imports:
            return Resolved(self._namespace(name))
        if not reaching:
            return _imported(self.imports[name]) if name in self.imports else None
        if name in self.imports and reaching[0].scope is None:
            return Resolved(UNKNOWN)
        values = [self._of(given, name) for given in reaching] if len(reaching) <= MOST else [UNKNOWN]
        if any(value is UNKNOWN or type(value) is not type(values[0]) or value != values[0] for value in values):
            return Resolved(UNKNOWN)
        return Resolved(self._changed(name, values[0], reaching[0], around))

    def _of(self, given: Given, name: str) -> Any:
        if given.parameter:
            passed = [self._value(node, around) for node, around in self.argument(given, name)]
            same = bool(passed) and all(v is not UNKNOWN and type(v) is type(passed[0]) for v in passed)
            return passed[0] if same and all(value == passed[0] for value in passed) else UNKNOWN
        if given.index is not None:
            whole = self._value(given.value, given.around)
            return whole[given.index] if isinstance(whole, list) and given.index < len(whole) else UNKNOWN
        if (parsed := self._parsed(given.value)) is not None:
            return parsed
        return self._value(given.value, (*given.around, given.node)) if given.value is not None else UNKNOWN

    def _parsed(self, node: ast.expr | None, depth: int = 0) -> Namespace | None:
        """Return what a parser of the script's own gives back, also through a function that returns it."""
        if self.told is None or not isinstance(node, ast.Call) or depth > 3:
            return None
        if isinstance(node.func, ast.Attribute):
            return Namespace(self.told) if node.func.attr == "parse_args" and not node.args else None
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        back = [
            (one.value, around)
            for one, around in self.nodes
            if isinstance(one, ast.Return) and any(isinstance(n, ast.FunctionDef) and n.name == name for n in around)
        ]
        if not name or len(back) != 1:
            return None
        value, around = back[0]
        found = self._parsed(value, depth + 1) or self._value(value, around)
        return found if isinstance(found, Namespace) else None

    def _changed(self, name: str, value: Any, given: Given, around: Around) -> Any:
        """Return a dict with the keys that later statements give it; UNKNOWN where they do so under a condition."""
        later = [part for part in self.flow.parts.get(name, ()) if part.scope is given.scope]
        if isinstance(value, dict) and (later or self._mutated(name)):
            value = dict(value)
            for part in later:
                certain = len(part.keys) == 1 and part.keys != ("?",) and len(part.around) <= len(given.around)
                if "?" in part.keys[:1]:
                    return UNKNOWN
                value[part.keys[0]] = self._of(part, name) if certain else UNKNOWN
            return UNKNOWN if self._mutated(name) else value
        if isinstance(value, Namespace):
            return Namespace({key: one for key, one in value.held.items() if not any(key in p.keys for p in later)})
        return UNKNOWN if isinstance(value, list) and (later or self._mutated(name)) else value

    def _mutated(self, name: str) -> bool:
        return name in self._changers

    @cached_property
    def _changers(self) -> set[str]:
        calls = [node.func for node, _ in self.nodes if isinstance(node, ast.Call)]
        return {
            f.value.id
            for f in calls
            if isinstance(f, ast.Attribute) and f.attr in CHANGERS and isinstance(f.value, ast.Name)
        }

    def _namespace(self, name: str) -> Namespace:
        """Return what a class of the script gives to names in its body, where nothing changes it later."""
        body = self.classes[name].body
        held: dict[str, ast.expr | None] = {}
        for stmt in body:
            if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and isinstance(stmt.targets[0], ast.Name):
                held[stmt.targets[0].id] = stmt.value
            elif isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name):
                held[stmt.target.id] = stmt.value
        changed = {part.keys[0] for parts in self.flow.parts.values() for part in parts}
        return Namespace({key: UNKNOWN if key in changed else self._value(v, ()) for key, v in held.items()})

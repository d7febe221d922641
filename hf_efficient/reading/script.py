"""A training script as its syntax tree says it: calls with their arguments, names, loops; it is never run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hf_efficient.finding import Place
from hf_efficient.reading.flow import FUNCTIONS, LOOPS, start
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.stars import starred
from hf_efficient.reading.values import Values


@dataclass(frozen=True, eq=False)
class Call:
    """One call: what is called, with which values, and what stands around it."""

    name: str
    """Dotted, through the imports: `transformers.AutoModel.from_pretrained`, `model.half`; empty: unknown."""
    args: tuple[Any, ...]
    """Values of the positional arguments, UNKNOWN where they cannot be followed."""
    keywords: dict[str, Any]
    open: bool
    """Are there `*args` or `**keywords` that cannot be followed?"""
    place: Place
    node: ast.Call
    around: tuple[ast.AST, ...]
    """The nodes around it, outermost first."""
    expressions: dict[str, ast.expr]
    """The expressions of the keywords, also of those that `**{...}` gives."""

    @cached_property
    def method(self) -> str:
        """Return the last part of the name: `from_pretrained`, `half`, `TrainingArguments`."""
        return self.name.rpartition(".")[2] or str(getattr(self.node.func, "attr", ""))

    @cached_property
    def receiver(self) -> str:
        """Return what stands before the method: `model` of `model.half()`."""
        return self.name.rpartition(".")[0]

    @cached_property
    def target(self) -> str:
        """Return the name that the result is assigned to, or an empty string."""
        parent = self.around[-1] if self.around else None
        targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
        assigned = isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr) and parent.value is self.node
        return dotted(targets[0]) if assigned and isinstance(targets[0], ast.Name | ast.Attribute) else ""

    @cached_property
    def function(self) -> str:
        """Return the name of the function around it, or an empty string."""
        return next((n.name for n in reversed(self.around) if isinstance(n, ast.FunctionDef)), "")

    @cached_property
    def owner(self) -> str:
        """Return the name of the class around it, or an empty string."""
        return next((n.name for n in reversed(self.around) if isinstance(n, ast.ClassDef)), "")

    @property
    def loops(self) -> tuple[ast.AST, ...]:
        """Return the loops around it within its function, outermost first."""
        return tuple(node for node in self._within() if isinstance(node, LOOPS))

    @property
    def guards(self) -> tuple[str, ...]:
        """Return the conditions of the `if`s around it within its function, as source text."""
        return tuple(ast.unparse(node.test) for node in self._within() if isinstance(node, ast.If | ast.IfExp))

    @property
    def contexts(self) -> tuple[str, ...]:
        """Return the context managers around it within its function, as source text."""
        blocks = [node for node in self._within() if isinstance(node, ast.With | ast.AsyncWith)]
        return tuple(ast.unparse(item.context_expr) for node in blocks for item in node.items)

    @property
    def text(self) -> str:
        """Return the call as source text."""
        return ast.unparse(self.node)

    def settings(self) -> Settings:
        """Return the keywords as settings, each with its line."""
        lines = {k.arg: Place(self.place.file, k.value.lineno) for k in self.node.keywords if k.arg}
        return Settings(self.keywords, place=self.place, places=lines, open=self.open)

    def _within(self) -> list[ast.AST]:
        start = max((i for i, node in enumerate(self.around) if isinstance(node, FUNCTIONS)), default=-1)
        return list(self.around[start + 1 :])


class Script(Values):
    """A parsed script. Raises SyntaxError, ValueError or RecursionError for what cannot be read as Python."""

    def __init__(self, source: str, file: str = "script", told: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.file = file
        self.told = told
        self.tree = ast.parse(source)
        nodes = list(_walk(self.tree))
        every = [node for node, _ in nodes]
        super().__init__(nodes, dict(starred(every)) | dict(_imports(every)))

    @cached_property
    def calls(self) -> list[Call]:
        """Return every call in the order of the source."""
        found = [self._call(node, around) for node, around in self.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=lambda call: (call.node.lineno, call.node.col_offset))

    @cached_property
    def done_to(self) -> dict[str, list[Call]]:
        """Return the calls of methods by what stands before the method."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.receiver, []).append(call)
        return found

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Return the functions by name; methods as `Class.method`."""
        found: dict[str, ast.FunctionDef] = {}
        for node, around in self.nodes:
            if isinstance(node, ast.FunctionDef):
                owner = around[-1].name + "." if around and isinstance(around[-1], ast.ClassDef) else ""
                found[owner + node.name] = node
        return found

    @cached_property
    def training_loops(self) -> list[ast.AST]:
        """Return the innermost loops whose own bodies call `.backward(...)`."""
        loops = [call.loops[-1] for call in self.calls if call.method == "backward" and call.loops]
        return list(dict.fromkeys(loops))

    def named(self, *methods: str) -> list[Call]:
        """Return the calls whose name ends with one of these (`AdamW`, `optim.AdamW`, `from_pretrained`)."""
        return [call for call in self.calls if any(f".{call.name}".endswith(f".{method}") for method in methods)]

    def inside(self, node: ast.AST) -> list[Call]:
        """Return the calls inside a node, such as a loop or a function."""
        return [call for call in self.calls if node in call.around]

    def made(self, name: str) -> Call | None:
        """Return the last call whose result the name was given, or None."""
        return self._made.get(name) if name else None

    @cached_property
    def _made(self) -> dict[str, Call]:
        return {call.target: call for call in self.calls if call.target}

    def full_name(self, name: str) -> str:
        """Return a dotted name through the imports: `F.mse_loss` is `torch.nn.functional.mse_loss`."""
        head, dot, rest = name.partition(".")
        return f"{self.imports.get(head, head)}{dot}{rest}"

    @cached_property
    def call_at(self) -> dict[int, Call]:
        """Return the calls by the identity of their nodes."""
        return {id(call.node): call for call in self.calls}

    def source_of(self, node: ast.AST | None) -> str:
        """Return the source text of an expression; empty where there is none."""
        return ast.unparse(node) if node is not None else ""

    def place(self, node: ast.AST) -> Place:
        """Return where a node stands."""
        return Place(self.file, getattr(node, "lineno", 0))

    def _items(self, node: ast.expr, around: tuple[ast.AST, ...]) -> dict[str, ast.expr]:
        """Return the items of `{...}` or `dict(...)`, itself or under a name that it was given once."""
        if isinstance(node, ast.Name):
            given = self.flow.reaching(node.id, around, start(node))
            node = given[0].value or node if len(given) == 1 and given[0].index is None else node
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {k.value: v for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)}
        made = isinstance(node, ast.Call) and dotted(node.func) == "dict"
        return {k.arg: k.value for k in node.keywords if k.arg} if made and isinstance(node, ast.Call) else {}

    def _call(self, node: ast.Call, around: tuple[ast.AST, ...]) -> Call:
        keywords: dict[str, Any] = {}
        expressions = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        open = any(isinstance(arg, ast.Starred) for arg in node.args)
        for keyword in node.keywords:
            value = self.value(keyword.value, around)
            if keyword.arg:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords |= {str(key): item for key, item in value.items()}
                expressions = self._items(keyword.value, around) | expressions
            else:
                open = True
        args = tuple(self.value(arg, around) for arg in node.args)
        return Call(
            self.full_name(dotted(node.func)), args, keywords, open, self.place(node), node, around, expressions
        )


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yield every node with the nodes around it; no recursion, so that depth costs nothing but memory."""
    stack: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while stack:
        node, around = stack.pop()
        yield node, around
        inner = (*around, node) if not isinstance(node, ast.Module) else around
        if len(inner) > 200:
            raise RecursionError("nested too deeply")
        stack.extend((child, inner) for child in reversed(list(ast.iter_child_nodes(node))))


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}".lstrip(".")

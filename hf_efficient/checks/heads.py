"""What Trainer's accumulation makes of a model class's loss: the installed transformers are read, never imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from hf_efficient.checks.loss_calls import loss_verdict
from hf_efficient.reading.installed import folder, tree

Verdict = str
USES = "uses"
"""The loss is a sum divided by num_items_in_batch: right under Trainer."""
DROPS = "drops"
"""forward takes **kwargs and its loss ignores num_items_in_batch: Trainer leaves the loss undivided."""
DIVIDED = "divided"
"""Trainer divides by the steps itself: forward takes no **kwargs, or the class says accepts_loss_kwargs=False."""
PLAIN_PROBLEMS = ("regression", "multi_label_classification")
"""Values of `problem_type` whose losses are plain means in transformers' own loss functions too."""
AUTO = "models/auto/modeling_auto.py"


class Found(NamedTuple):
    """A class definition and the file, inside transformers, that holds it."""

    node: ast.ClassDef
    path: str


def verdict(name: str, problem: str = "") -> Verdict:
    """Return what becomes of the loss of transformers' class `name`: USES, DROPS, DIVIDED, or empty: not known.

    `problem` is the configuration's problem_type, where known. Seen in transformers 5.24, Trainer.__init__ (part 6,
    model_accepts_loss_kwargs), training_step and _get_num_items_in_batch, which counts only where a batch has "labels".
    """
    found = where(name)
    return _judge(found, name, problem) if found else ""


def auto_class(auto: str, model_type: str) -> str:
    """Return the class that an Auto class builds for a model_type, or nothing."""
    names = mapping(auto).get(model_type, "")
    return names if isinstance(names, str) else ""


@cache
def mapping(auto: str) -> Mapping[str, str]:
    """Return model_type to class name of an Auto class; empty where there is none."""
    module = tree("transformers", AUTO)
    names = ""
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef) and node.name == auto:
            texts = [ast.unparse(part.value) for part in node.body if isinstance(part, ast.Assign)]
            names = next((f"{text}_NAMES" for text in texts if text.endswith("_MAPPING")), "")
    for node in module.body if module else ():
        if isinstance(node, ast.Assign) and names and ast.unparse(node.targets[0]) == names:
            return dict(_pairs(node.value))
    return {}


def model_types() -> Iterator[str]:
    """Yield every Auto class that has a mapping."""
    module = tree("transformers", AUTO)
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef) and node.name.startswith("AutoModel") and mapping(node.name):
            yield node.name


def _pairs(value: ast.expr) -> Iterator[tuple[str, str]]:
    for pair in ast.walk(value):
        if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
            key, name = pair.elts
            name = name.elts[0] if isinstance(name, ast.Tuple) and name.elts else name
            if isinstance(key, ast.Constant) and isinstance(name, ast.Constant):
                yield str(key.value), str(name.value)


@cache
def where(name: str) -> Found | None:
    """Return the definition of a class of transformers, or None. Files are searched as text and one is parsed."""
    here = folder("transformers")
    if not here or not name.isidentifier():
        return None
    sign = f"\nclass {name}(".encode()
    for path in sorted(here.glob("models/*/modeling_*.py")):
        if sign in path.read_bytes():
            inside = path.relative_to(here).as_posix()
            return in_file(inside, name)
    return None


def in_file(path: str, name: str, depth: int = 0) -> Found | None:
    """Return the class as a file defines or imports it, or None."""
    module = tree("transformers", path)
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Found(node, path)
        names = [alias.asname or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.level and name in names and depth < 4:
            parts = [*path.split("/")[: -node.level], *(node.module or "").split(".")]
            return in_file("/".join(filter(None, parts)) + ".py", name, depth + 1)
    return None


def lineage(found: Found, depth: int = 0) -> Iterator[Found]:
    """Yield the class and those of its bases that transformers defines, nearest first, left before right."""
    yield found
    for base in found.node.bases if depth < 6 else ():
        inherited = (
            in_file(found.path, base.id) if isinstance(base, ast.Name) and base.id != "PreTrainedModel" else None
        )
        if inherited:
            yield from lineage(inherited, depth + 1)


def _judge(found: Found, name: str, problem: str) -> Verdict:
    family = list(lineage(found))
    accepts = next((value for one in family for value in _attribute(one.node, "accepts_loss_kwargs")), None)
    if accepts is False:
        return DIVIDED
    forwards = [part for one in family for part in one.node.body if isinstance(part, ast.FunctionDef)]
    forwards = [part for part in forwards if part.name == "forward"]
    if not forwards:
        return ""
    arguments = forwards[0].args
    if accepts is None and arguments.kwarg is None:
        return DIVIDED
    if "labels" not in [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]:
        return ""
    says = loss_verdict(forwards[0], loss_uses=_loss_uses(family, name, problem))
    return {True: USES, False: DROPS, None: ""}[says]


def _attribute(node: ast.ClassDef, name: str) -> Iterator[object]:
    for part in node.body:
        if (
            isinstance(part, ast.Assign)
            and ast.unparse(part.targets[0]) == name
            and isinstance(part.value, ast.Constant)
        ):
            yield part.value.value


def _loss_uses(family: list[Found], name: str, problem: str) -> bool | None:
    """Say whether `self.loss_function` of the class divides by num_items_in_batch where it is told of it."""
    kinds = _loss_functions()
    if not kinds:
        return None
    own = [_own_loss(one.node) for one in family]
    if any(kind == "?" for kind in own):
        return None
    kind = next((kind for kind in own if kind), "") or _loss_type(name, kinds)
    function = kinds.get(kind) or kinds["ForCausalLM"]
    if function == "ForSequenceClassificationLoss" and problem in PLAIN_PROBLEMS:
        return False
    return _function_uses(function)


def _own_loss(node: ast.ClassDef) -> str:
    """Return the loss type that a class sets for itself; "?" where it sets a function."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef) and part.name == "loss_function":
            return "?"
        target = ast.unparse(part.targets[0]) if isinstance(part, ast.Assign) else ""
        if target in ("self.loss_function", "self._loss_function"):
            return "?"
        if isinstance(part, ast.Assign) and target == "self.loss_type" and isinstance(part.value, ast.Constant):
            return str(part.value.value)
    return ""


def _loss_type(name: str, kinds: Mapping[str, str]) -> str:
    if name in kinds:
        return name
    found = re.findall("|".join(kinds), name)
    return found[0] if found else ""


@cache
def _loss_functions() -> Mapping[str, str]:
    """Return LOSS_MAPPING: kind of head to the name of its loss function."""
    module = tree("transformers", "loss/loss_utils.py")
    for node in module.body if module else ():
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Dict) and ast.unparse(node).startswith("LOSS_MAPPING ="):
            keys = [key.value if isinstance(key, ast.Constant) else "" for key in value.keys]
            return dict(zip(map(str, keys), map(ast.unparse, value.values), strict=True))
    return {}


@cache
def _function_uses(name: str) -> bool | None:
    """Say whether a function of loss_utils.py reads num_items_in_batch or hands it on to one that does."""
    module = tree("transformers", "loss/loss_utils.py")
    for node in module.body if module else ():
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if any(isinstance(part, ast.Name) and part.id == "num_items_in_batch" for part in ast.walk(node)):
                return True
            calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
            spread = [call for call in calls if any(keyword.arg is None for keyword in call.keywords)]
            inner = [call.func.id for call in spread if isinstance(call.func, ast.Name) and call.func.id != name]
            return any(_function_uses(one) for one in inner)
    return None

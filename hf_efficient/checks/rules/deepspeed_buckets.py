"""Bucket sizes that "auto" cannot derive from a model whose hidden size lies deeper in its configuration."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import BUCKETS
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error
from hf_efficient.reading.installed import folder
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

SIZES = ("hidden_size", "hidden_sizes")


@check({"transformers": ">=5.0", "accelerate": ">=1.0", "deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_auto_buckets_without_hidden_size(setup: Setup, deepspeed: Settings, model: Settings) -> Iterator[Finding]:
    """Find bucket sizes that are "auto" for a model whose configuration has no hidden size where it is looked for.

    transformers' Trainer looks at hidden_size and hidden_sizes of the configuration and then of its text_config
    (trainer_config_finalize), no deeper: not into thinker_config. A hand-written loop is looked after by
    Accelerator.prepare, which looks at the top only. Both raise ValueError. The numbers that auto would have written
    are h * h, int(0.9 * h * h) and 10 * h of the text model's hidden size h.
    """
    left = [f"zero_optimization.{key}" for key in BUCKETS if deepspeed.get(f"zero_optimization.{key}") == "auto"]
    reach = _reach(setup, deepspeed, left)
    found = _found(model)
    if not left or not reach or found is None or found in reach:
        return
    size = _hidden_size(model)
    if isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1_000_000:
        values = dict(zip(BUCKETS, (size * size, int(0.9 * size * size), 10 * size), strict=True))
        remedy = "Write the integers, from the text model's hidden_size " + f"{size}: "
        remedy += ", ".join(f'"{key}": {value}' for key, value in values.items()) + "."
    else:
        remedy = "Write integers: h * h, int(0.9 * h * h) and 10 * h for the text model's hidden_size h."
    who = "transformers' Trainer" if "text" in reach else "accelerate's prepare()"
    yield error(
        f'{", ".join(left)} {"is" if len(left) == 1 else "are"} "auto" for {model.text("model_type") or "this model"}',
        why=f"{who} finds no hidden_size for this model: it looks at "
        f"{'the configuration and its text_config' if 'text' in reach else 'the top of the configuration only'}, and "
        "raises ValueError when training begins.",
        fix=remedy,
        at=deepspeed.where(left[0]),
    )


def _reach(setup: Setup, deepspeed: Settings, left: list[str]) -> tuple[str, ...]:
    """Return where the hidden size is looked for: top, and text for the Trainer; nothing where the door is unknown."""
    through = door(setup)
    if through == "accelerate":
        return ("top",)
    if through != "trainer":
        return ()
    by_accelerate = deepspeed.get("zero_optimization.stage") != 3 and any("stage3_" in path for path in left)
    return ("top",) if by_accelerate else ("top", "text")


def _found(model: Settings) -> str | None:
    """Return where the configuration has its hidden size: top, text, or elsewhere (deeper); None: unknown."""
    config = model.get("config")
    if isinstance(config, Mapping):
        known = _in_class(str(config.get("model_type")))
        if any(name in config for name in SIZES) or known == "top":
            return "top"
        text = config.get("text_config")
        if isinstance(text, Mapping) and any(name in text for name in SIZES):
            return "text"
        nested = any(isinstance(v, Mapping) and k.endswith(("config", "coder")) and v for k, v in config.items())
        return known or ("elsewhere" if nested else None)
    return _in_class(model.text("model_type")) if model.text("model_type") else None


@cache
def _in_class(model_type: str) -> str | None:
    """Return where the configuration class of the installed transformers has its hidden size; None: unknown."""
    here = folder("transformers")
    name = model_type.replace("-", "_")
    if here is None or not name.isidentifier():
        return None
    path = here / "models" / name / f"configuration_{name}.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and _model_type(node) == model_type]
    if not classes or not any(_sub_configs(statement) for statement in classes[0].body):
        return None
    names = {found for node in classes[0].body if not _is_doc(node) for found in _named(node)}
    if names & set(SIZES):
        return "top"
    return "text" if "text_config" in names else "elsewhere"


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _sub_configs(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").startswith("sub_configs")


def _model_type(node: ast.ClassDef) -> Any:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "model_type":
            return getattr(statement.value, "value", None)
    return None


def _named(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a class gives: fields, keys, methods, attributes of self."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.FunctionDef):
        yield node.name
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
                yield inner.attr
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
        yield from (
            key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        )


def _hidden_size(model: Settings) -> Any:
    """Return the text model's hidden size, or UNKNOWN."""
    return model.number("hidden_size") if model.said("hidden_size") else UNKNOWN

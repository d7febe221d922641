"""YAML and JSON: values exactly as their readers give them, and the line of every key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hf_efficient.finding import Finding, Place, warning
from hf_efficient.reading.json_lines import damage, lines_of
from hf_efficient.reading.refusal import Unreadable, refuse, too_deep
from hf_efficient.reading.yaml_lines import Keys, checked, keys_of
from hf_efficient.wording import one_sentence

DEPTH = 100
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's reader is ten times faster and gives the same values."""


@dataclass(frozen=True)
class Document:
    """A value with the place of each of its keys."""

    value: Any
    places: Mapping[str, Place]
    findings: tuple[Finding, ...]


def read_json(text: str, file: str) -> Document:
    """Return what json.loads gives. Raises Unreadable."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep(file) from None
    except ValueError as error:
        raise _broken_json(text, file, error) from None
    keys = lines_of(text)
    if keys.depth > DEPTH:
        raise too_deep(file)
    return _document(value, keys, file, strict=True)


def read_yaml(text: str, file: str) -> Document:
    """Return what yaml.safe_load gives. Raises Unreadable."""
    try:
        wrong = checked(text, LOADER, depth=DEPTH)
        if wrong:
            raise refuse(file, wrong, why="Read out in full it would not end.", fix="Write the values out.")
        loader = LOADER(text)
        node = loader.get_single_node()
        keys = keys_of(node)
        value = loader.construct_document(node) if node is not None else None
    except Unreadable:
        raise
    except RecursionError:
        raise too_deep(file) from None
    except Exception as error:  # a tag that does not fit its value raises KeyError, AttributeError, IndexError, ...
        deep = "nesting depth" in str(getattr(error, "problem", ""))
        raise too_deep(file) if deep else _broken_yaml(text, file, error) from None
    return _document(value, keys, file)


def _document(value: Any, keys: Keys, file: str, *, strict: bool = False) -> Document:
    places = {path: Place(file, line) for path, line in keys.lines.items()}
    more = "; DeepSpeed's own reader refuses the file" if strict else ""
    return Document(_named(value), places, tuple(_twice(file, *twice, more) for twice in keys.twice[:20]))


def _named(value: Any) -> Any:
    """Return the value with every key as a string, since keys of settings are names."""
    if isinstance(value, Mapping):
        return {str(key): _named(one) for key, one in value.items()}
    return [_named(one) for one in value] if isinstance(value, list | tuple | set) else value


def _twice(file: str, path: str, first: int, last: int, more: str) -> Finding:
    lines = f"in lines {first} and {last} of one mapping" if first != last else f"in line {first}"
    return warning(
        f"{path} stands twice, {lines}",
        why=f"Readers keep the last and drop the first without a word{more}.",
        fix="Remove one of the two; the last is what counts now.",
        at=Place(file, last),
    ).coded("duplicate-key")


def _broken_json(text: str, file: str, error: ValueError) -> Unreadable:
    line, told = getattr(error, "lineno", 0), getattr(error, "msg", one_sentence(error))
    kind = damage(text)
    reason = f"is not JSON: it has {kind}" if kind else f"is not JSON: {told}"
    fix = (
        f"Take out {kind}; JSON allows none."
        if kind
        else f"Mend {f'line {line}' if line else 'that value'}; `python -m json.tool` says whether it is right."
    )
    why = "accelerate and transformers read it with json.load, which stops there."
    return refuse(file, f"{reason} (line {line})" if line else reason, why=why, fix=fix, line=line)


def _broken_yaml(text: str, file: str, error: Exception) -> Unreadable:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else 0
    told = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
    reason = told or f"{type(error).__name__}: {one_sentence(error)[:200]}"
    if "\t" in text and "cannot start any token" in reason:
        reason += " (a tab: YAML indents with spaces)"
    at = f" (line {line})" if line else ""
    why = "yaml.safe_load, with which the stack reads such files, stops there."
    which = f"line {line} or the one before it" if line else "it"
    fix = f"Mend {which}: a missing colon, quote or bracket, or a wrong indent."
    return refuse(file, f"is not YAML: {reason}{at}", why=why, fix=fix, line=line)

"""Old names in YAML and JSON files of arguments, and in setup documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from hf_efficient.doctor.fix.mapping import Change
from hf_efficient.doctor.fix.steps import KEEP, Step, holds, step
from hf_efficient.reading.parts import Part
from hf_efficient.reading.setup import Setup
from hf_efficient.renames import FIELDS, OPTIMIZERS, SFT, explain

Path = tuple[str, ...]
BLOCKS: Mapping[str, tuple[Path, ...]] = {"arguments": ((),), "setup": (("trainer",), ("sft",))}
"""Where fields of TrainingArguments stand in each kind of file."""


def argument_changes(
    data: Mapping[str, Any], kind: str, runs: Sequence[Setup], versions: Callable[[str], Version | None]
) -> tuple[list[Change], list[tuple[Path, str]]]:
    """Return the changes of old names in a file, and the paths that are left with the reason."""
    changes: list[Change] = []
    left: list[tuple[Path, str]] = []
    own = _own_fields(runs)
    for above in BLOCKS.get(kind, ()):
        block = data.get(above[0]) if above else data
        if not isinstance(block, Mapping):
            continue
        table = FIELDS | SFT if above == ("sft",) or any(run.sft is not None for run in runs) else FIELDS
        moved: dict[str, dict[str, Any]] = {}
        for name, value in block.items():
            rename = table.get(name)
            if name == "optim" and isinstance(value, str) and (other := OPTIMIZERS.get(value)) and other.new:
                changes += [Change("set", (*above, name), other.new)] if holds(other, versions("transformers")) else []
            if rename is None or name in own or not holds(rename, versions(rename.since.partition(" ")[0])):
                continue
            found = step(rename, value, block)
            if found.do == "leave":
                left.append(((*above, name), f"{name} is left: {found.why}"))
            else:
                changes += _changes(found, above, name, value, block, moved)
    return changes, left


def shell_left(part: Part) -> list[tuple[int, str]]:
    """Return the old names on command lines, which are not rewritten: whose options they are is not sure."""
    return [
        (command.arguments.where(name).line, f"--{name} is left, as shell lines are: {explain(name)}")
        for command in part.commands
        for name in command.arguments
        if name in FIELDS and not FIELDS[name].works
    ]


def _changes(
    found: Step, above: Path, name: str, value: Any, block: Mapping[str, Any], moved: dict[str, dict[str, Any]]
) -> list[Change]:
    path = (*above, name)
    if found.do == "remove":
        return [Change("remove", path)]
    if found.do == "rename":
        return [Change("rename", path, found.new)] + ([] if found.value is KEEP else [Change("set", path, found.value)])
    inner = value if found.value is KEEP else found.value
    if found.new in block:
        return [Change("add", (*above, found.new, found.key), inner), Change("remove", path)]
    if found.new in moved:
        moved[found.new][found.key] = inner
        return [Change("remove", path)]
    moved[found.new] = {found.key: inner}
    return [Change("rename", path, found.new), Change("set", path, moved[found.new])]


def _own_fields(runs: Sequence[Setup]) -> set[str]:
    """Return the names that classes of the scripts annotate: these are the script's own arguments."""
    classes = [node for run in runs if run.script is not None for node in run.script.classes.values()]
    names = (getattr(getattr(stmt, "target", None), "id", "") for node in classes for stmt in node.body)
    return {name for name in names if name}

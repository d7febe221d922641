"""What is mended: the named files, looked at again after each round until nothing more is to do, then written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from hf_efficient.checks.check import version
from hf_efficient.checks.run import examine, with_effective
from hf_efficient.doctor.fix.arguments import argument_changes, shell_left
from hf_efficient.doctor.fix.cures import Case, cured
from hf_efficient.doctor.fix.mapping import Change, changed_by_groups, in_order, lines
from hf_efficient.doctor.fix.source import Source, require_writable, source_of
from hf_efficient.doctor.fix.text import NEWLINE, UnsafeError, edited
from hf_efficient.doctor.gather import gather
from hf_efficient.doctor.models import named_model
from hf_efficient.doctor.runs import runs_of
from hf_efficient.doctor.silence import silenced
from hf_efficient.emit.files import write
from hf_efficient.finding import Finding
from hf_efficient.reading.files import parses, part_of_text
from hf_efficient.reading.machines import of_card
from hf_efficient.reading.parts import Part
from hf_efficient.reading.setup import Setup

ROUNDS = 6
"""A change may bring up another one (a renamed argument that a JSON contradicts); none brings up so many."""
NAMES = ("renamed-", "deprecated-argument")
"""What the codes of checks about old names begin with."""
BLOCKS = ("deepspeed", "launch")
"""What a setup document says for files of these kinds."""
Names = tuple[str, ...]
Left = list[tuple[int, str]]


@dataclass(frozen=True)
class View:
    """What the files say as they stand in one round."""

    parts: Mapping[str, Part]
    runs: Sequence[Setup]
    findings: Sequence[Finding]
    silent: Sequence[Finding]

    def of(self, file: str) -> list[Setup]:
        """Return the runs that a file is part of."""
        return [run for run in self.runs if file in run.files]

    def quiet(self, file: str) -> frozenset[int]:
        """Return the lines of a file where somebody silenced a finding about an old name."""
        mine = [found for found in self.silent if found.where.file == file and found.code.startswith(NAMES)]
        return frozenset(found.where.line for found in mine)

    def version(self, file: str, package: str) -> Version | None:
        """Return the release of a package that the runs of a file use."""
        machines = [run.machine for run in self.of(file)]
        return version(package, machines[0] if machines else None)


def mend(
    files: Sequence[Path], tell: Callable[[str], None], *, gpu: str | None = None, model: str | None = None
) -> list[str]:
    """Mend what is safe in the named files, and return the names of those that were written.

    `tell` is given a unified diff for each file, and a sentence for what was left, before anything is written. Raises
    ValueError for a path that does not exist and, with nothing written, for a file that is read-only.
    """
    sources = _sources(files)
    texts = {source.file: source.text for source in sources}
    left: dict[str, Left] = {}
    for _ in range(ROUNDS):
        view = _view(files, sources, texts, gpu, model)
        made = {}
        for source in sources:
            made[source.file], left[source.file] = _mended(source, texts[source.file], view)
        if made == texts:
            break
        texts = made
    todo = [source for source in sources if texts[source.file] != source.text]
    for source in todo:
        tell(_diff(source, texts[source.file]))
    for file, reasons in left.items():
        for line, why in reasons:
            tell(f"{file}:{line}: {why}")
    for source in todo:
        require_writable(source)
    for source in todo:
        write(source.path, source.data(texts[source.file]))
    return [source.file for source in todo]


def _sources(files: Sequence[Path]) -> list[Source]:
    """Return the files that can be read and written back, each once however it was named."""
    found: dict[Path, Source] = {}
    for path in files:
        source = source_of(path)
        if source is not None:
            found.setdefault(path.resolve(), source)
    return list(found.values())


def _view(
    files: Sequence[Path], sources: Sequence[Source], texts: Mapping[str, str], gpu: str | None, model: str | None
) -> View:
    parts = {part.file: part for part in gather(files)}
    for source in sources:
        if texts[source.file] != source.text:
            parts[source.file] = part_of_text(texts[source.file], source.path)
    machine, subject = of_card(gpu) if gpu else None, named_model(model) if model else None
    runs = [with_effective(run) for run in runs_of(list(parts.values()), machine=machine, model=subject)]
    found = [finding for run in runs for finding in examine(run)]
    kept, quiet = silenced(dict.fromkeys(found), list(parts), files, texts)
    return View(parts, runs, kept, [finding for finding, _ in quiet])


def _mended(source: Source, text: str, view: View) -> tuple[str, Left]:
    """Return what a file's text becomes, and what is left in it; a file that does not take a change stays whole."""
    part = view.parts.get(source.file)
    if part is None or part.kind in ("unreadable", "checkpoint", "config"):
        return text, []
    try:
        if part.kind == "script":
            return _script(source, text, view)
        return (text, shell_left(part)) if part.kind == "shell" else _mapping(source, text, view, part.kind)
    except (UnsafeError, yaml.YAMLError, RecursionError) as error:
        return text, [(0, f"nothing was changed: {error}")]
    except (LookupError, AttributeError, TypeError) as error:
        return text, [(0, f"nothing was changed, by a fault of ours ({type(error).__name__}): please report it")]


def _script(source: Source, text: str, view: View) -> tuple[str, Left]:
    try:
        from hf_efficient.doctor.fix.python import python_edits
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise ValueError("--fix rewrites scripts with libcst: run `pip install 'hf-efficient[fix]'`.") from None
    try:
        edits, left = python_edits(text, lambda package: view.version(source.file, package), view.quiet(source.file))
    except UnsafeError:
        raise
    except ValueError as error:
        return text, [(0, f"nothing was changed: {error}")]
    made = edited(text, edits)
    if not parses(made):
        return text, [(0, "nothing was changed: the result would not be Python")]
    return made, left


def _mapping(source: Source, text: str, view: View, kind: str) -> tuple[str, Left]:
    is_json = text.lstrip()[:1] == "{" and _is_json(text)
    data: Any = json.loads(text) if is_json else yaml.safe_load(text)
    if not isinstance(data, dict):
        return text, []
    line = lines(text, is_json=is_json)
    quiet = view.quiet(source.file)
    runs = view.of(source.file)
    renamed, left = argument_changes(data, kind, runs, lambda package: view.version(source.file, package))
    found = [finding for finding in view.findings if finding.where.file == source.file]
    spoken = [change for change in renamed if line(change.path) not in quiet - {0}]
    groups = [[change] for change in in_order(_cured(data, kind, found, runs, line))] + ([spoken] if spoken else [])
    made, unsafe = changed_by_groups(text, groups, is_json=is_json)
    told = [(line(path), why) for path, why in left if line(path) not in quiet]
    return made, [*told, *((0, str(error)) for error in unsafe)]


def _cured(
    data: Mapping[str, Any], kind: str, findings: Sequence[Finding], runs: Sequence[Setup], line: Callable[[Names], int]
) -> Iterator[Change]:
    """Yield what mends findings in a file, or in the blocks of a setup document that stand for files."""
    for name in BLOCKS if kind == "setup" else ("",):
        block = data.get(name) if name else data
        above = (name,) if name else ()
        if isinstance(block, dict):
            at = _below(line, above)
            cases = [Case(found, block, runs, at) for found in findings]
            for change in cured(name or kind, cases):
                yield change._replace(path=(*above, *change.path))


def _below(line: Callable[[Names], int], above: Names) -> Callable[[Names], int]:
    return lambda path: line((*above, *path))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _diff(source: Source, text: str) -> str:
    old, new = (NEWLINE.split(each) for each in (source.text, text))
    return "\n".join(unified_diff(old, new, source.file, f"{source.file} (mended)", lineterm=""))

"""A file or folder becomes a part: recognised by its content, never executed, and never a traceback.

The readers of a kind load when the first file of that kind is read: an answer on one script waits for no other reader.
"""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from hf_efficient.finding import Finding
from hf_efficient.reading.encoding import text_of
from hf_efficient.reading.parts import Part
from hf_efficient.reading.refusal import Unreadable, refuse, stranger, too_deep
from hf_efficient.reading.script import Script
from hf_efficient.wording import one_sentence

SHELLS = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".pbs", ".lsf")
SHEBANG = re.compile(r"#!.*?\b(bash|sh|zsh|dash|ksh|python)[\d.]*\b")
PYTHON = re.compile(r"^(?:import [\w.]+|from [\w.]+ import |(?:def|class) \w+.*:\s*$|@\w+)", re.MULTILINE)


def read(path: Path) -> list[Part]:
    """Return what a file or folder says. Nothing inside it raises: what cannot be read is a part that says so."""
    file = str(path)
    try:
        if path.is_dir():
            from hf_efficient.reading.checkpoint import read_folder

            return [read_folder(path, file)]
        text, told = text_of(path, file)
        part = _part(text, path, file)
    except Unreadable as refusal:
        return [refusal.part(file)]
    except (RecursionError, MemoryError):
        return [too_deep(file).part(file)]
    return [_with(part, told)]


def part_of_text(text: str, path: Path) -> Part:
    """Return what a file would say if it held this text, as `read` does for what it holds."""
    try:
        return _part(text.replace("\r\n", "\n").replace("\r", "\n"), path, str(path))
    except Unreadable as refusal:
        return refusal.part(str(path))
    except (RecursionError, MemoryError):
        return too_deep(str(path)).part(str(path))


def _with(part: Part, told: tuple[Finding, ...]) -> Part:
    return Part(**{**vars(part), "findings": (*told, *part.findings)})


def _part(text: str, path: Path, file: str) -> Part:
    """Return what a text is; its name decides only where its content leaves it open."""
    kind = path.suffix.lower()
    shebang = SHEBANG.match(text)
    language = shebang.group(1) if shebang else ""
    if language and language != "python":
        return _shell(text, file)
    if kind in (".py", ".pyw") or language == "python":
        return _script(text, file)
    if kind in SHELLS:
        return _shell(text, file)
    if kind in (".yaml", ".yml"):
        return _yaml(text, path, file)
    if kind == ".json" or text.lstrip()[:1] == "{":
        return _json(text, path, file)
    return _plain(text, path, file)


def _script(text: str, file: str) -> Part:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string is no matter of ours
            return Part(kind="script", file=file, script=Script(text, file))
    except SyntaxError as error:
        line = error.lineno or 0
        raise refuse(
            file,
            f"is not Python: {error.msg} (line {line})",
            why="Python stops there as well.",
            fix=f"Mend line {line}, or the one before it.",
            line=line,
        ) from None
    except (ValueError, UnicodeError) as error:
        raise refuse(
            file, f"is not Python: {one_sentence(error)}", why="Python stops there as well.", fix="Mend it."
        ) from None


def _shell(text: str, file: str, *, prose: bool = False) -> Part:
    from hf_efficient.reading.commands import read_shell

    return read_shell(text, file, prose=prose)


def _json(text: str, path: Path, file: str) -> Part:
    from hf_efficient.reading.documents import part_of
    from hf_efficient.reading.structured import read_json

    try:
        document = read_json(text, file)
    except Unreadable as broken:
        if text.lstrip()[:1] in ("{", "["):
            raise
        raise _misnamed(text, path, file) or broken from None
    return part_of(document, file, name=path.name)


def _misnamed(text: str, path: Path, file: str) -> Unreadable | None:
    """Return what to say of a .json file that holds something else that can be read."""
    try:
        part = _plain(text, path, file)
    except Unreadable:
        return None
    real = "Python" if part.kind == "script" else "a shell script" if part.kind == "shell" else "YAML"
    return refuse(
        file,
        f"is named .json and holds {real}",
        why="Readers choose by the name, and json.load stops at its first line.",
        fix=f"Name it for what it is ({'.yaml' if real == 'YAML' else '.py or .sh'}).",
    )


def _yaml(text: str, path: Path, file: str) -> Part:
    from hf_efficient.reading.documents import part_of
    from hf_efficient.reading.structured import read_yaml

    try:
        document = read_yaml(text, file)
    except Unreadable:
        if PYTHON.search(text) and parses(text):
            return _script(text, file)
        raise
    if isinstance(document.value, str) and (found := _shell(text, file, prose=True)).commands:
        return found
    if document.value is None:
        raise refuse(
            file, "holds nothing but comments", why="There is nothing to read.", fix="Write it, or leave it out."
        )
    yaml = text.lstrip()[:1] != "{"
    return part_of(document, file, name=path.name, yaml=yaml)


def _plain(text: str, path: Path, file: str) -> Part:
    """Return what a text is whose name says nothing: a script, a mapping, or lines with commands among them."""
    from hf_efficient.reading.documents import part_of
    from hf_efficient.reading.structured import read_yaml

    if PYTHON.search(text) and parses(text):
        return _script(text, file)
    try:
        document = read_yaml(text, file)
        if isinstance(document.value, dict):
            return part_of(document, file, name=path.name, yaml=True)
    except Unreadable:
        pass  # prose, or shell: the next reader says so
    found = _shell(text, file, prose=True)
    if found.commands or found.settings:
        return found
    raise stranger(file)


def parses(text: str) -> bool:
    """Is the text Python?"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string is no matter of ours
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True

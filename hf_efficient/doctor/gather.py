"""The files that were named, and those that they name themselves where these exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from hf_efficient.reading.files import read
from hf_efficient.reading.parts import Command, Part
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import Settings
from hf_efficient.wording import listed

LIMIT = 200
"""Files read for one answer; a project that names more is checked by parts."""


def gather(paths: Sequence[Path]) -> list[Part]:
    """Return what each file says, and what the files that those name say (a script, a YAML, a JSON), where found.

    Raises ValueError for a path that does not exist.
    """
    missing = [str(path) for path in paths if not path.exists() and not path.is_symlink()]
    if missing:
        raise ValueError(f"There is no file {listed(missing)}: nothing was checked. Name files that exist.")
    seen: set[Path] = set()
    parts: list[Part] = []
    waiting = list(paths)
    while waiting and len(seen) < LIMIT:
        path = waiting.pop(0)
        if _real(path) in seen:
            continue
        seen.add(_real(path))
        found = read(path)
        parts += found
        waiting += [other for name in named_by(found) for other in _places(name, path)]
    return parts


def named_by(parts: Iterable[Part]) -> list[str]:
    """Return the paths that files name: scripts, accelerate YAMLs, DeepSpeed files, files of arguments."""
    return [name for part in parts for name in _named(part) if name]


def same_file(named: str, file: str) -> bool:
    """Do a path as written somewhere and a file's name mean the same file, as far as names tell?"""
    one, other = Path(named).parts, Path(file).parts
    shorter = min(len(one), len(other))
    return (
        bool(shorter) and Path(named).name == Path(file).name and (one[-shorter:] == other[-shorter:] or shorter == 1)
    )


def deepspeed_names(part: Part) -> list[str]:
    """Return the DeepSpeed files that a part names."""
    names: list[str] = []
    for settings, key in _deepspeed_keys(part):
        names.append(settings.text(key))
    if part.script is not None:
        names += _references(part.script)
    return [name for name in names if name.endswith((".json", ".yaml", ".yml", ".hjson"))]


@lru_cache(maxsize=LIMIT)
def _references(script: Script) -> tuple[str, ...]:
    """Return the paths that a script names; asked once for every pairing of files, and the same each time."""
    from hf_efficient.reading.script_setup import setups

    return tuple(name for setup in setups(script) for name in setup.references)


def _deepspeed_keys(part: Part) -> Iterator[tuple[Settings, str]]:
    yield part.settings, "deepspeed_config.deepspeed_config_file"
    yield part.settings, "deepspeed"
    for command in part.commands:
        yield command.arguments, "deepspeed"
        yield command.launch, "deepspeed_config.deepspeed_config_file"
    if part.setup is not None and part.setup.trainer is not None:
        yield part.setup.trainer, "deepspeed"


def _named(part: Part) -> Iterator[str]:
    for command in part.commands:
        yield from _of_command(command)
    yield from deepspeed_names(part)


def _of_command(command: Command) -> Iterator[str]:
    yield command.script if command.script.endswith(".py") else ""
    yield command.config_file
    yield from command.files


def _places(name: str, beside: Path) -> list[Path]:
    """Return where a file that another one names is: beside that, else in the working folder."""
    candidates = [beside.parent / name, Path(name)]
    return [path for path in candidates if _is_file(path)][:1]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path

"""What lies in the folder of a checkpoint, read without unpickling anything, and whether it is whole."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_efficient.emit.files import write
from hf_efficient.emit.launcher import launched_processes

RUN = "run.json"
"""Our own file in a checkpoint, of either door: how the run was started, and where a hand-written loop was."""


def newest(folder: str) -> str:
    """Return the checkpoint of `folder` with the most updates. Raises ValueError when there is none."""
    from transformers.trainer_utils import get_last_checkpoint

    found = get_last_checkpoint(folder) if Path(folder).is_dir() else None
    if not found:
        raise ValueError(f"There is no checkpoint to resume from in {folder}: leave the flag out.")
    return str(found)


def asked_folder(asked: str | None, output_dir: str) -> Path | None:
    """Return the folder that --resume_from_checkpoint names, the newest for `true`, None where the run begins.

    Raises ValueError when there is no such folder.
    """
    name = os.path.expanduser(str(asked or ""))
    if name.lower() in ("", "false", "none"):
        return None
    if name.lower() == "true":
        return Path(newest(output_dir))
    if not Path(name).is_dir():
        raise ValueError(
            f"There is no folder {name}: --resume_from_checkpoint takes a folder checkpoint-N, or true for the newest "
            f"in {output_dir}."
        )
    return Path(name)


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    """Write `facts` as a checkpoint's `run.json`."""
    # torchao's optimizers keep the learning rate as a tensor, and the scheduler's state has it.
    write(folder / RUN, json.dumps(facts, indent=2, default=float) + "\n")


def read_run(folder: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint's `run.json`; none where there is no such file."""
    try:
        found = json.loads((folder / RUN).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_damaged(folder: Path, missing: Iterable[str]) -> None:
    """Raise ValueError when a checkpoint lacks what is `missing`, or has files that were cut off."""
    wrong = [f"has no {name}" for name in missing] or [f"has only a part of {name}" for name in _cut_off(folder)]
    if wrong:
        earlier = [path for path in folder.parent.glob("checkpoint-*") if 0 <= _updates(path) < _updates(folder)]
        instead = f"resume from {max(earlier, key=_updates)}" if earlier else "begin anew"
        raise ValueError(
            f"{folder} is half-written, as when a run ends while it saves: it {wrong[0]}. Delete it and {instead}."
        )


def ranks_here(processes: int) -> list[int]:
    """Return the ranks whose files this process must see: all on one machine, its own where there are several."""
    world = launched_processes()
    one_machine = int(os.environ.get("LOCAL_WORLD_SIZE") or world) == world
    return list(range(processes)) if one_machine else [int(os.environ.get("RANK") or 0)]


def _updates(folder: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(found[1]) if found else -1


def _cut_off(folder: Path) -> list[str]:
    """Return the files of tensors that end too early, as those of a process that was killed do."""
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file() and _is_cut(path)]


def _is_cut(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return _is_cut_safetensors(path)
    if path.suffix not in (".pt", ".pth", ".bin", ".pkl"):
        return False
    with path.open("rb") as file:
        head = file.read(2)
    return not head or (head == b"PK" and not zipfile.is_zipfile(path))  # torch's archives end with their contents


def _is_cut_safetensors(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            return False
    except SafetensorError:
        return True

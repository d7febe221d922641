"""The recipes and DeepSpeed files that travel with the package, and copies of them for a project of yours."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Literal, NamedTuple

from hf_efficient.emit.files import write
from hf_efficient.presets import PRESETS
from hf_efficient.wording import unknown

Kind = Literal["recipes", "configs"]
FOLDERS: dict[Kind, tuple[str, str]] = {"recipes": ("recipes", ".py"), "configs": ("deepspeed_configs", ".json")}


class Shipped(NamedTuple):
    """A file that travels with the package and the first line of what it says about itself."""

    path: Path
    doc: str


def shipped(kind: Kind) -> dict[str, Shipped]:
    """Return every shipped file of `kind` under its name without suffix, in alphabetical order."""
    folder, suffix = FOLDERS[kind]
    return {path.stem: Shipped(path, _doc(path)) for path in sorted(_folder(folder).glob(f"*{suffix}"))}


def copy(kind: Kind, name: str, folder: Path) -> Path:
    """Copy a shipped file into `folder`, which is made if need be, and return the copy's path.

    Raises ValueError for a name that nothing has and for a file that is there already with other content: that one
    may hold work of yours.
    """
    there = shipped(kind)
    stem = name.removesuffix(FOLDERS[kind][1])
    if stem not in there:
        raise unknown({"recipes": "recipe", "configs": "config"}[kind], name, there)
    text = there[stem].path.read_text(encoding="utf-8")
    target = folder / there[stem].path.name
    if target.is_file() and target.read_text(encoding="utf-8", errors="replace") != text:
        raise ValueError(f"{target} is there already and differs: move it away, or name another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"Cannot make the folder {folder}: {(error.strerror or str(error)).lower()}.") from None
    write(target, text)
    return target


def _folder(name: str) -> Path:
    """Return where a wheel puts the folder, else where it lies in the repository."""
    inside = Path(__file__).parent / name
    return inside if inside.is_dir() else Path(__file__).parents[1] / name


def _doc(path: Path) -> str:
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
    preset = PRESETS.get(path.stem)
    stage = json.loads(path.read_text(encoding="utf-8")).get("zero_optimization", {}).get("stage")
    return preset.doc if preset else f"DeepSpeed ZeRO stage {stage}."

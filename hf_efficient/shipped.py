"""The recipes, DeepSpeed files and launch files that travel with the package, and copies for a project of yours."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from hf_efficient.emit.deepspeed import deepspeed_json
from hf_efficient.emit.files import write
from hf_efficient.emit.places import require_offload_folder
from hf_efficient.merge import make_plan
from hf_efficient.presets import PRESETS
from hf_efficient.tricks import catalogue
from hf_efficient.wording import unknown

Kind = Literal["recipes", "configs"]
ONE: dict[Kind, str] = {"recipes": "recipe", "configs": "config"}
LAUNCH = "launch/"
FOLDERS: dict[Kind, tuple[tuple[str, str, str], ...]] = {
    "recipes": (("recipes", ".py", ""),),
    "configs": (
        ("deepspeed_configs", ".json", ""),
        ("recipes/launch", ".yaml", LAUNCH),
        ("recipes/launch", ".sh", LAUNCH),
    ),
}
"""Kind -> its folders, the suffix of the files there, and what stands before their names."""

DISK = "zero3_nvme"
DISK_DOC = "As zero3_offload_params, on a local NVMe disk: made for the folder that you name with --nvme-path."


class Shipped(NamedTuple):
    """A file that travels with the package and the first line of what it says about itself."""

    path: Path
    doc: str


def shipped(kind: Kind) -> dict[str, Shipped]:
    """Return every shipped file of `kind` under its name without suffix, folder by folder in alphabetical order."""
    return {
        prefix + path.stem: Shipped(path, _doc(path))
        for folder, suffix, prefix in FOLDERS[kind]
        for path in sorted(_folder(folder).glob(f"*{suffix}"))
    }


def docs(kind: Kind) -> dict[str, str]:
    """Return what there is to copy, under its name, with a line about each; what is made for you among it."""
    found = {name: file.doc for name, file in shipped(kind).items()}
    return dict(sorted({**found, DISK: DISK_DOC}.items(), key=_by_folder)) if kind == "configs" else found


def copy(kind: Kind, name: str, folder: Path, *, nvme_path: str | None = None) -> Path:
    """Copy a shipped file into `folder`, which is made if need be, and return the copy's path.

    `nvme_path` is the folder that `zero3_nvme` offloads to; that file is made here, with the whole path in it.

    Raises ValueError for a name that nothing has; for a file that is there already with other content, which may hold
    work of yours; for an nvme_path that is missing, misplaced, or no folder with room. Nothing is written then.
    """
    if kind == "configs" and name.removesuffix(".json") == DISK:
        file, text = f"{DISK}.json", _on_disk(nvme_path)
    else:
        if nvme_path is not None:
            raise ValueError(f"{name} offloads to no disk: leave --nvme-path out, or copy {DISK}.")
        path = _find(kind, name).path
        file, text = path.name, path.read_text(encoding="utf-8")
    return _write_new(folder / file, text)


def _find(kind: Kind, name: str) -> Shipped:
    """Return the file of that name, with or without its suffix; a launch file without its folder, if no other has it.

    Raises ValueError with the nearest name.
    """
    there = shipped(kind)
    for full in (name, LAUNCH + name):
        for known, file in there.items():
            if full in (known, known + file.path.suffix):
                return file
    raise unknown(ONE[kind], name, [*docs(kind), *_bare(there)])


def _bare(names: Iterable[str]) -> list[str]:
    """Return the names of launch files that no DeepSpeed file has."""
    names = list(names)
    return [bare for name in names if (bare := name.removeprefix(LAUNCH)) not in names]


def _on_disk(path: str | None) -> str:
    if not (path or "").strip():
        raise ValueError(
            f"{DISK} is made for the folder that it offloads to: add --nvme-path /local_nvme, with one on a fast local "
            "disk of yours."
        )
    folder = Path(str(path)).absolute()
    require_offload_folder(folder)
    return deepspeed_json(make_plan(catalogue()["zero"](3, offload="all", nvme_path=str(folder))))


def _write_new(target: Path, text: str) -> Path:
    if target.is_file() and target.read_text(encoding="utf-8", errors="replace") != text:
        raise ValueError(f"{target} is there already and differs: move it away, or name another folder.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"Cannot make the folder {target.parent}: {reason}.") from None
    write(target, text)
    return target


def _by_folder(item: tuple[str, str]) -> tuple[bool, str]:
    return item[0].startswith(LAUNCH), item[0]


def _folder(name: str) -> Path:
    """Return where a wheel puts the folder, else where it lies in the repository."""
    inside = Path(__file__).parent / name
    return inside if inside.is_dir() else Path(__file__).parents[1] / name


def _doc(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    if path.suffix in (".yaml", ".sh"):
        return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")
    preset = PRESETS.get(path.stem)
    stage = json.loads(text).get("zero_optimization", {}).get("stage")
    return preset.doc if preset else f"DeepSpeed ZeRO stage {stage}."

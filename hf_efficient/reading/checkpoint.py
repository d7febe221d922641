"""A folder of a checkpoint: what it holds, by names and headers; nothing in it is unpickled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_efficient.finding import Finding, Place
from hf_efficient.reading.parts import Part
from hf_efficient.reading.refusal import Unreadable, refuse
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.structured import read_json
from hf_efficient.reading.weights import JSON_LIMIT, dtypes, keys_of_weights, prefixes

MOST = 20_000
"""Names of a folder that are looked at."""
OPTIMIZER = re.compile(r"optimizer(_\d+)?(\.(pt|bin|safetensors))?$")
SCHEDULER = re.compile(r"(scheduler|lr_scheduler)(_\d+)?\.(pt|bin)$")
SCALER = re.compile(r"scaler\.pt$")
RNG = re.compile(r"(?:rng_state(?:_(\d+))?\.pth|random_states_(\d+)\.pkl)$")
WEIGHTS = re.compile(
    r"((adapter_)?model(-\d+-of-\d+)?|pytorch_model(-\d+-of-\d+)?|adapter_model)(_\d+)?\.(safetensors|bin)$"
)
SHARDED = re.compile(r"pytorch_model_fsdp(_\d+)?$|model\.safetensors\.index\.json$|__\d+_\d+\.distcp$")
ZERO_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt$")
ZERO_FOLDER = re.compile(r"global_step\d+$")
STEP = re.compile(r"(?:checkpoint|epoch|step)[-_](\d+)$")


def read_folder(path: Path, file: str) -> Part:
    """Return a checkpoint, or the model's configuration where the folder holds a model only. Raises Unreadable."""
    names = _names(path, file)
    found: list[Finding] = []
    values = _values(path, names, found)
    places = {key: Place(f"{file}/{name}") for key, name in JSONS.items() if key in values}
    resumes = any(
        values.get(key) for key in ("state", "optimizer", "scheduler", "scaler", "rng", "zero", "adapter", "prefixes")
    )
    config = values.get("config")
    if isinstance(config, Mapping) and not resumes:
        return Part(kind="config", file=file, settings=Settings(config, place=places["config"]), findings=tuple(found))
    if not resumes and not values.get("weights") and not values.get("sharded"):
        raise Unreadable(found[0]) if found else _unexpected(file, names)
    settings = Settings(values, place=Place(file), places=places)
    return Part(kind="checkpoint", file=file, settings=settings, findings=tuple(found))


JSONS = {"state": "trainer_state.json", "config": "config.json", "adapter": "adapter_config.json"}


def _values(path: Path, names: list[str], found: list[Finding]) -> dict[str, Any]:
    """Return what the folder holds; a key is absent where there is nothing of it."""
    values: dict[str, Any] = {"files": names}
    for key, name in JSONS.items():
        value = _json(path / name, found) if name in names else None
        if value is not None:
            values[key] = value
    for key, pattern in {"optimizer": OPTIMIZER, "scheduler": SCHEDULER, "scaler": SCALER, "weights": WEIGHTS}.items():
        values[key] = [name for name in names if pattern.match(name)]
    values["best_missing"] = _best_missing(path, values.get("state"))
    values["sharded"] = [name for name in names if SHARDED.match(name)]
    keys = keys_of_weights(path, names, found)
    values["prefixes"], values["dtypes"] = prefixes(keys), dtypes(keys)
    numbers = [one for name in names if (match := RNG.match(name)) for one in [match.group(1) or match.group(2) or "0"]]
    values["rng"] = {"files": len(numbers), "ranks": 1 + max(map(_rank, numbers))} if numbers else {}
    values["zero"] = _zero(path, names)
    return {key: value for key, value in values.items() if value or key == "files"}


def _best_missing(path: Path, state: Any) -> str:
    """Return the best checkpoint that a state names, where it stood in this checkpoint's folder and is not there."""
    best = state.get("best_model_checkpoint") if isinstance(state, Mapping) else None
    if not isinstance(best, str) or len(best) > 1000 or "\0" in best:
        return ""
    named, here = Path(best), path.absolute().parent
    same = bool(named.parent.name) and named.parent.name == here.name
    try:
        return best if same and not (here / named.name).exists() else ""
    except OSError:
        return ""


def _zero(path: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return what DeepSpeed has saved: its folders, how many ranks wrote, whether parameters are sharded (stage 3)."""
    folders = [name for name in names if ZERO_FOLDER.match(name) or name == "pytorch_model"]
    inside = [one for name in folders for one in _listed(path / name)]
    matches = [match for match in map(ZERO_FILE.match, inside) if match]
    found: dict[str, Any] = {}
    if matches or any(ZERO_FOLDER.match(name) for name in folders):
        found["folders"] = folders
        found["script"] = "zero_to_fp32.py" in names
    if matches:
        found["ranks"] = 1 + max(_rank(match.group(1)) for match in matches)
        found["parameters_sharded"] = any(match.group(3) == "model" for match in matches)
    if found and "latest" in names:
        found["latest"] = _first_line(path / "latest")
    return found


def _rank(digits: str) -> int:
    return int(digits[:9])


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.readline(200).strip()
    except OSError:
        return ""


def _listed(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MOST]
    except OSError:
        return []


def _names(path: Path, file: str) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MOST]
    except OSError as error:
        raise refuse(
            file, f"could not be opened: {error.strerror}", why="The system refused it.", fix="Check its permissions."
        ) from None


def _json(path: Path, found: list[Finding]) -> Any:
    """Return a mapping, or None with a finding that says why there is none."""
    try:
        if not path.is_file() or path.stat().st_size > JSON_LIMIT:
            raise refuse(str(path), "is no file, or too large", why="It was not read.", fix="Look at it.")
        value = read_json(path.read_text(encoding="utf-8-sig"), str(path)).value
        if isinstance(value, Mapping):
            return value
        raise refuse(str(path), "holds no mapping", why="It was damaged or is another file.", fix="Save it again.")
    except Unreadable as refusal:
        found.append(refusal.finding)
    except (OSError, ValueError) as error:
        told = refuse(str(path), f"could not be read: {error}", why="It was damaged.", fix="Copy or save it again.")
        found.append(told.finding)
    return None


def _unexpected(file: str, names: Iterable[str]) -> Unreadable:
    steps = sorted((int(match.group(1)[:9]), name) for name in names if (match := STEP.match(name)))
    inner = f"Name one of the checkpoints in it, such as {file}/{steps[-1][1]}." if steps else ""
    scripts = [name for name in names if name.endswith((".py", ".sh", ".yaml", ".yml"))][:3]
    files = f"Name its files one by one, such as {' '.join(f'{file}/{name}' for name in scripts)}." if scripts else ""
    return refuse(
        file,
        "is a folder that is neither a checkpoint nor a model",
        why="A checkpoint has trainer_state.json, optimizer.pt or a global_step folder, a model has config.json.",
        fix=inner or files or "Name scripts and configurations one by one, or the folder of a checkpoint.",
    )

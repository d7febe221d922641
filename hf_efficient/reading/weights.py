"""Names and dtypes of a checkpoint's tensors, from its index and from headers of safetensors; no tensor is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_efficient.finding import Finding
from hf_efficient.reading.refusal import refuse

JSON_LIMIT = 64 * 2**20
"""Bytes; the log in trainer_state.json grows with the run."""
HEADER_LIMIT = 100_000_000
"""Bytes; what the safetensors library itself allows."""
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_flat_param")
FRONTS = ("module.", "base_model.model.")
FILES = 200


def keys_of_weights(path: Path, names: list[str], found: list[Finding]) -> dict[str, str]:
    """Return tensor to dtype (as safetensors spells it; empty: unknown) of all files that say it without unpickling."""
    keys: dict[str, str] = {}
    for name in [
        name for name in names if name.endswith(".safetensors.index.json") or name.endswith(".bin.index.json")
    ]:
        weights = _index(path / name)
        keys |= {str(key): "" for key in weights}
    for name in [name for name in names if name.endswith(".safetensors") and not name.startswith("optimizer")][:FILES]:
        header = safetensors_header(path / name)
        if isinstance(header, str):
            why = "It was cut off or damaged, or is no safetensors file, so loading it will fail."
            told = refuse(
                str(path / name), header, why=why, fix="Save or copy it again, or resume from an older checkpoint."
            )
            found.append(told.finding)
        else:
            keys |= header
    return keys


def _index(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > JSON_LIMIT:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    weights = value.get("weight_map") if isinstance(value, dict) else None
    return weights if isinstance(weights, dict) else {}


def safetensors_header(path: Path) -> dict[str, str] | str:
    """Return tensor to dtype, or what is wrong with the file.

    The format: eight bytes with the header's length (little-endian), the header as JSON, the data.
    Source: https://github.com/huggingface/safetensors, "Format".
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, HEADER_LIMIT):
                return "is cut off: its header says that it is longer than the file"
            header = json.loads(stream.read(length))
    except OSError as error:
        return f"could not be opened: {error.strerror}"
    except (ValueError, RecursionError):
        return "has a header that is not JSON"
    if not isinstance(header, dict):
        return "has a header that is no mapping"
    tensors = {key: value for key, value in header.items() if key != "__metadata__" and isinstance(value, dict)}
    if any(_end(tensor) > size - 8 - length for tensor in tensors.values()):
        return "is cut off: some of its tensors lie behind its end"
    return {key: str(tensor.get("dtype", "")) for key, tensor in tensors.items()}


def _end(tensor: Mapping[str, Any]) -> int:
    offsets = tensor.get("data_offsets")
    last = offsets[-1] if isinstance(offsets, list) and offsets else 0
    return last if isinstance(last, int) else 0


def prefixes(keys: Mapping[str, str]) -> list[str]:
    """Return what wrappers have left in the names of tensors: `_orig_mod.`, `module.`, `base_model.model.`, ..."""
    parts = {part for key in keys for part in key.split(".")}
    inside = [f"{wrapper}." for wrapper in WRAPPERS if wrapper in parts]
    return inside + [front for front in FRONTS if keys and all(key.startswith(front) for key in keys)]


def dtypes(keys: Mapping[str, str]) -> list[str]:
    """Return the dtypes of the tensors as safetensors spells them (F32, BF16), sorted."""
    return sorted({dtype for dtype in keys.values() if dtype})

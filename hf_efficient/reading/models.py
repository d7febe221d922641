"""The model of a setup: one spelling of dtypes, and what its config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.reading.settings import UNKNOWN, Settings

DTYPES = {
    "float16": "float16", "half": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float32": "float32", "float": "float32", "fp32": "float32", "float64": "float64", "double": "float64",
    "auto": "auto",
}  # fmt: skip


def dtype(value: Any) -> Any:
    """Return float16, bfloat16, float32, float64 or auto for any spelling (torch.half, "fp16"); UNKNOWN for others."""
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    return None if value is None else DTYPES.get(name, UNKNOWN)


def model_settings(model: Settings) -> Settings:
    """Return the model with its dtypes in one spelling and what its `config` says where nobody else does.

    transformers 5 loads a checkpoint in the dtype that it was saved in, where no dtype is asked for; so `load_dtype` is
    `checkpoint_dtype` then, and unknown where that is.
    """
    values = dict(model.values)
    config = values.get("config")
    if isinstance(config, Mapping):
        values = from_config(config) | values
    for key in ("load_dtype", "checkpoint_dtype"):
        if key in values:
            values[key] = dtype(values[key])
    if values.get("load_dtype") in (None, "auto") and not model.open:
        values["load_dtype"] = values.get("checkpoint_dtype") or UNKNOWN
    return Settings(values, place=model.place, places=model.places, open=model.open)


def from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return model_type, checkpoint_dtype, vocab_size, hidden_size and the class, as far as a config.json names them.

    Sizes stand at the top or in the configuration of the text model of a composite one.
    """
    named = config.get("architectures")
    text = _text(config)
    found = {
        "model_type": config.get("model_type"),
        "checkpoint_dtype": config.get("dtype", config.get("torch_dtype")),
        "vocab_size": text.get("vocab_size"),
        "hidden_size": text.get("hidden_size"),
        "architecture": named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _text(config: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """Return the part of a configuration that has the hidden size: itself, or the text model's."""
    if "hidden_size" in config or depth > 4:
        return config
    for key in ("text_config", "thinker_config", "llm_config", "language_config", "decoder"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return _text(inner, depth + 1)
    return config

"""Rotary positions of a tiny model: what is written per dimension of a head fits the small head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_efficient.promises.sizes import HEAD, HEADS, HIDDEN

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SPATIAL = ("qwen2_vl_text", "qwen2_5_vl_text")
"""Types of configurations whose models take sections of 16, 24 and 24 where none are named."""
ORIGINAL = 256
"""The positions before an extension, at most; a tiny model has 512."""


def fit_rope(config: PreTrainedConfig) -> None:
    """Make the rotary settings of one configuration fit its head size: sections, factors per dimension, lengths."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = vars(config).get(name)
        if isinstance(settings, dict):
            setattr(config, name, {key: _fit_one(config, key, value) for key, value in settings.items()})
            setattr(config, name, _fitted(getattr(config, name), _rotated(config, getattr(config, name))))
    _name_sections(config)
    original = vars(config).get("original_max_position_embeddings")
    if isinstance(original, int):
        config.original_max_position_embeddings = min(original, ORIGINAL)


def _name_sections(config: PreTrainedConfig) -> None:
    """Write down the sections of rotary positions in space and time, where a model has its own for its usual size."""
    settings = vars(config).get("rope_parameters")
    if config.model_type in SPATIAL and isinstance(settings, dict) and "mrope_section" not in settings:
        config.rope_parameters = {**settings, "mrope_section": _sections([16, 24, 24], _rotated(config, settings) // 2)}


def _fit_one(config: PreTrainedConfig, key: str, value: Any) -> Any:
    """Return the settings of one kind of layers, where they differ by kind; anything else as it is."""
    return _fitted(value, _rotated(config, value)) if isinstance(value, dict) else value


def _rotated(config: PreTrainedConfig, settings: dict[str, Any]) -> int:
    """Return the rotated dimensions of a head."""
    fields = vars(config)
    head = fields.get("qk_rope_head_dim") or fields.get("head_dim")
    if not isinstance(head, int):
        heads = getattr(config, "num_attention_heads", None) or HEADS
        size = getattr(config, "hidden_size", None) or HIDDEN
        head = size // heads if isinstance(heads, int) and isinstance(size, int) else HEAD
    factor = settings.get("partial_rotary_factor") or fields.get("partial_rotary_factor") or 1.0
    return int(head * factor) if isinstance(factor, float | int) and not fields.get("qk_rope_head_dim") else head


def _fitted(settings: dict[str, Any], rotated: int) -> dict[str, Any]:
    half = rotated // 2
    fitted = dict(settings)
    if isinstance(settings.get("mrope_section"), list | tuple):
        fitted["mrope_section"] = _sections(list(settings["mrope_section"]), half)
    for name in ("short_factor", "long_factor"):
        if isinstance(settings.get(name), list | tuple):
            fitted[name] = list(settings[name])[:half]
    if isinstance(settings.get("original_max_position_embeddings"), int):
        fitted["original_max_position_embeddings"] = min(settings["original_max_position_embeddings"], ORIGINAL)
    return fitted


def _sections(sections: list[int], half: int) -> list[int]:
    """Return as many sections that share `half` dimensions as before."""
    total = sum(sections)
    scaled = [max(1, section * half // total) for section in sections]
    scaled[-1] += half - sum(scaled)
    return scaled

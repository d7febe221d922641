"""Sizes of a tiny model that follow from other sizes, in the families where they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_efficient.promises.sizes import IMAGE, WIDE, tiny_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


NARROW = 0.2
"""Times the width and the depth that a convolutional network has in its code."""


def fit_family(config: PreTrainedConfig, before: dict[str, Any]) -> None:
    """Set what follows from other sizes; `before` are the fields of the configuration as it was."""
    heads, head = before.get("num_heads"), before.get("head_dim")
    if (
        "depths" in before
        and isinstance(heads, list | tuple)
        and isinstance(before.get("embed_dim"), int)
        and "window_size" in before
    ):
        _fit_stages(config, list(heads), before)
    if before.get("qk_rope_head_dim") and isinstance(head, int):  # DeepSeek's is another name for one of the two
        if head == before["qk_rope_head_dim"]:
            config.head_dim = config.qk_rope_head_dim
        elif head == before.get("qk_head_dim"):
            config.head_dim = config.qk_head_dim
    for name in ("width_coefficient", "depth_coefficient", "depth_multiplier"):  # of EfficientNet and MobileNet
        if isinstance(before.get(name), float):
            setattr(config, name, min(before[name], NARROW))
    if isinstance(before.get("width_coefficient"), float) and "hidden_dim" in before:
        config.hidden_dim = int(1280 * config.width_coefficient)
    if "attention_types" in before:  # GPT-Neo writes its layers as kinds and how often they repeat
        kinds = before["attention_types"][0][0][:2]
        config.attention_types = [[kinds, 2 // len(kinds)]]
        config.attention_layers = (list(kinds) * 2)[:2]
    if isinstance(before.get("mamba_d_ssm"), int):
        config.mamba_d_ssm = WIDE
    if before.get("pixel_shuffle_ratio") and "patch_size" in before:  # Llama 4 widens each of the fewer patches
        config.intermediate_size = int(config.hidden_size / before["pixel_shuffle_ratio"] ** 2)
    if before.get("image_grid_pinpoints") and before.get("vision_config") is not None:
        _fit_grids(config, before["image_grid_pinpoints"])


def _fit_stages(config: PreTrainedConfig, heads: list[int], before: dict[str, Any]) -> None:
    """Fit Swin's stages, each of which has its own number of heads and twice the size of the one before."""
    config.num_heads = type(before["num_heads"])(number // min(heads) for number in heads)
    config.embed_dim = 8
    if "hidden_size" in before:
        config.hidden_size = config.embed_dim * 2 ** (len(heads) - 1)
    if "image_size" in before:
        config.image_size = 2 * IMAGE


def _fit_grids(config: PreTrainedConfig, grids: list[Any]) -> None:
    """Fit LLaVA-NeXT's sizes of large images, whole numbers of small ones."""
    smallest = min(min(grid) for grid in grids)
    tiny = [[max(1, side // smallest) * IMAGE for side in grid] for grid in grids]
    config.image_grid_pinpoints = [grid for place, grid in enumerate(tiny) if grid not in tiny[:place]]


def overrides(fields: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return what single layers have different from the others, by their number: Gemma 4's head size."""
    return getattr(fields.get("_heterogeneity_spec"), "per_layer_overrides", {})


def shrink_overrides(config: PreTrainedConfig, before: dict[str, Any], kept: dict[int, list[int]]) -> None:
    """Keep for the tiny model's layers what they have different, in small sizes that still differ."""
    different = overrides(before)
    if different:
        layers = kept[before["num_hidden_layers"]]
        vars(config)["_heterogeneity_spec"].per_layer_overrides = {
            place: {name: _different(name, value, before) for name, value in different[layer].items()}
            for place, layer in enumerate(layers)
            if layer in different
        }


def _different(name: str, value: Any, before: dict[str, Any]) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    usual, tiny = before.get(name), tiny_size(name, value, before)
    return 2 * tiny if isinstance(usual, int) and usual < value and "head_dim" in name else tiny

"""Made images and sounds, of the shape that a model's processor would give them."""

from __future__ import annotations

import inspect
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel


WAVE = 8000
"""Samples of a wave: half a second, 24 frames of wav2vec 2.0."""


def picture(model: PreTrainedModel, chance: random.Random) -> dict[str, Any]:
    """Return the values of one image."""
    config = model.config
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    asked = _asked(model)
    if "image_grid_thw" in asked:
        side = 2 * getattr(vision, "spatial_merge_size", 1)
        pixels = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
        return {"pixel_values": noise((side * side, pixels), chance), "image_grid_thw": [[1, side, side]]}
    height, width = _sides(vision)
    pieces = _pieces(config, height, width) if "image_sizes" in asked else ()
    pieces = (1,) if config.model_type in ("idefics2", "idefics3", "smolvlm") else pieces
    values: dict[str, Any] = {"pixel_values": noise((*pieces, channels, height, width), chance)}
    return values | ({"image_sizes": [height, width]} if "image_sizes" in asked else {})


def _asked(model: PreTrainedModel) -> set[str]:
    """Return what the model wants to know of an image."""
    return (
        set(inspect.signature(model.get_image_features).parameters) if hasattr(model, "get_image_features") else set()
    )


def _pieces(config: PreTrainedConfig, height: int, width: int) -> tuple[int, ...]:
    """Return the number of pieces that LLaVA-NeXT cuts an image into, nothing for models that do not."""
    if not getattr(config, "image_grid_pinpoints", None):
        return ()
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    return (int(image_size_to_num_patches([height, width], config.image_grid_pinpoints, height)),)


def sound(model: PreTrainedModel, chance: random.Random) -> dict[str, Any]:
    """Return the values of one sound: a spectrogram, or a wave for models without one."""
    config = model.config
    bins = getattr(config, "num_mel_bins", None)
    if bins:
        return {"input_features": noise((bins, 2 * config.max_source_positions), chance)}
    feeds = getattr(config, "input_feat_per_channel", None)
    if feeds:
        return {"input_features": noise((64, feeds * getattr(config, "input_channels", 1)), chance)}
    return {"input_values": noise((WAVE,), chance)}


def wave(model: PreTrainedModel, chance: random.Random) -> dict[str, Any]:
    """Return half a second of sound as a wave, or as the spectrogram that the model reads instead."""
    config = model.config
    if hasattr(config, "conv_stride") and hasattr(config, "conv_dim"):
        return {"input_values": noise((WAVE,), chance)}
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins") and hasattr(config, "frequency_stride"):
        return {"input_values": noise((config.max_length, config.num_mel_bins), chance)}
    if hasattr(config, "feature_projection_input_dim"):
        return {"input_features": noise((2 * WAVE // 160, config.feature_projection_input_dim), chance)}
    return sound(model, chance)


def noise(shape: tuple[int, ...], chance: random.Random) -> torch.Tensor:
    """Return normal numbers that depend on `chance` alone."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(chance.getrandbits(31)))


def _sides(vision: Any) -> tuple[int, int]:
    size = getattr(vision, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def image_tokens(model: PreTrainedModel, values: dict[str, Any]) -> list[int]:
    """Return as many image tokens as the model makes of an image, between its start and its end where it has them.

    Raises ValueError for a model whose images are made in another way.
    """
    config = model.config
    token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    try:
        number = _features(model, values)
    except Exception:  # whatever the vision towers of other families raise
        number = 0
    if not isinstance(token, int) or not number:
        raise ValueError(
            f"There are no made images for a {type(model).__name__}: pass rows of yours with --data, or a model of "
            "the LLaVA, Qwen-VL, Gemma 3, Idefics or SmolVLM family."
        )
    start = getattr(config, "vision_start_token_id", None)
    end = getattr(config, "vision_end_token_id", None)
    edges = [[edge] if isinstance(edge, int) else [] for edge in (start, end)]
    return [*edges[0], *[token] * number, *edges[1]]


def _features(model: PreTrainedModel, values: dict[str, Any]) -> int:
    """Return how many vectors the model puts in the place of an image."""
    import torch

    training = model.training
    with torch.no_grad():
        one = {name: _batched(name, value).to(model.device) for name, value in values.items()}
        features = model.eval().get_image_features(**one)
    model.train(training)
    found = getattr(features, "pooler_output", features)
    found = features.last_hidden_state if found is None else found
    return sum(part.numel() // part.shape[-1] for part in (found if isinstance(found, list | tuple) else [found]))


def _batched(name: str, value: Any) -> Any:
    """Return the value of one row as a batch; grids and patches of one image are a batch already."""
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensor if name == "image_grid_thw" or tensor.ndim == 2 else tensor[None]

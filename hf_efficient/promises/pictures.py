"""Made images and sounds, of the shape that a model's processor would give them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def picture(model: PreTrainedModel, chance: random.Random) -> tuple[dict[str, Any], list[int]]:
    """Return the values of one image and the tokens that stand for it in a text, none in a model without text."""
    config = model.config
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    if hasattr(vision, "spatial_merge_size") and hasattr(vision, "temporal_patch_size"):
        merge = vision.spatial_merge_size
        height, width = 2 * merge, 2 * merge
        pixels = channels * vision.temporal_patch_size * vision.patch_size**2
        values = {"pixel_values": noise((height * width, pixels), chance), "image_grid_thw": [[1, height, width]]}
    else:
        values = {"pixel_values": noise((channels, *_sides(vision)), chance)}
    if not hasattr(config, "vision_config"):
        return values, []
    if model.config.model_type in ("idefics2", "idefics3", "smolvlm"):
        values["pixel_values"] = values["pixel_values"][None]  # several images a row
    if model.config.model_type in ("llava_next", "llava_onevision", "llava_next_video"):
        values["pixel_values"] = values["pixel_values"][None].repeat(2, 1, 1, 1)
        values["image_sizes"] = list(_sides(vision))
    return values, _image_tokens(model, values)


def sound(model: PreTrainedModel, chance: random.Random) -> dict[str, Any]:
    """Return the values of one sound: a spectrogram, or a wave for models without one."""
    config = model.config
    bins = getattr(config, "num_mel_bins", None)
    if bins:
        return {"input_features": noise((bins, 2 * config.max_source_positions), chance)}
    feeds = getattr(config, "input_feat_per_channel", None)
    if feeds:
        return {"input_features": noise((64, feeds * getattr(config, "input_channels", 1)), chance)}
    return {"input_values": noise((4000,), chance)}


def noise(shape: tuple[int, ...], chance: random.Random) -> torch.Tensor:
    """Return normal numbers that depend on `chance` alone."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(chance.getrandbits(31)))


def _sides(vision: Any) -> tuple[int, int]:
    size = getattr(vision, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def _image_tokens(model: PreTrainedModel, values: dict[str, Any]) -> list[int]:
    """Return as many image tokens as the model makes of an image, between its start and its end where it has them."""
    import torch

    config = model.config
    token = next((getattr(config, name, None) for name in ("image_token_id", "image_token_index")), None)
    token = token if token is not None else getattr(config, "image_token_index", None)
    if not isinstance(token, int) or not hasattr(model, "get_image_features"):
        raise ValueError(
            f"There are no made images for a {type(model).__name__}: pass rows of yours with --data, or a model of "
            "the LLaVA, Qwen-VL, Gemma 3, Idefics or SmolVLM family."
        )
    training = model.training
    with torch.no_grad():
        one = {name: _batched(name, value) for name, value in values.items()}
        features = model.eval().get_image_features(**one)
    model.train(training)
    found = getattr(features, "pooler_output", features)
    number = sum(part.numel() // part.shape[-1] for part in (found if isinstance(found, list | tuple) else [found]))
    start = getattr(config, "vision_start_token_id", None)
    end = getattr(config, "vision_end_token_id", None)
    edges = [[edge] if isinstance(edge, int) else [] for edge in (start, end)]
    return [*edges[0], *[token] * number, *edges[1]]


def _batched(name: str, value: Any) -> Any:
    """Return the value of one row as a batch; grids and patches of one image are a batch already."""
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensor if name == "image_grid_thw" or tensor.ndim == 2 else tensor[None]

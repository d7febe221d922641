"""A configuration -> one of the same structure with small sizes, for a model that is checked in seconds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.promises.family import fit_family, overrides, shrink_overrides
from hf_efficient.promises.ids import remap_ids
from hf_efficient.promises.rope import fit_rope
from hf_efficient.promises.sizes import HIDDEN, LAYERS, tiny_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FEWEST, MOST = 2, 4
"""Layers of a tiny model: one of each kind, two at least."""


def tiny_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of `config` with two layers of 64 dimensions, 4 heads, 4 experts and 256 tokens.

    Kinds of layers, ratios of heads, dropouts and everything else stay; ids of special tokens become distinct ones
    below 256, sliding windows become shorter than the rows. Quantization is dropped, the dtype is float32.
    """
    tiny = copy.deepcopy(config)
    for part in list(parts(tiny)):
        _shrink(part)
    remap_ids(list(parts(tiny)))
    for part in parts(tiny):
        fit_rope(part)
    return tiny


def parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """Yield a configuration and those inside it, such as its text and vision parts."""
    from transformers import PreTrainedConfig

    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from parts(value)


def _shrink(config: PreTrainedConfig) -> None:
    """Make the sizes of one configuration small, without those inside it."""
    import torch

    before = dict(vars(config))
    depths = {name: value for name, value in before.items() if _is_size(value) and LAYERS.match(name) and value > 0}
    kept = {depth: _kept_layers(before, depth) for depth in set(depths.values())}
    for name, value in before.items():
        if name in depths:
            _set(config, name, len(kept[value]))
        elif _is_size(value):
            _set(config, name, tiny_size(name, value, before))
        elif isinstance(value, list | tuple) and value:
            _set(config, name, _shorter(name, value, kept, before))
    shrink_overrides(config, before, kept)
    fit_family(config, before)
    for name in ("quantization_config", "compression_config"):
        if hasattr(config, name):
            delattr(config, name)
    config.dtype = torch.float32


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _set(config: PreTrainedConfig, name: str, value: Any) -> None:
    if vars(config).get(name) != value:
        setattr(config, name, value)


def _kept_layers(fields: dict[str, Any], depth: int) -> list[int]:
    """Return the numbers of the layers to keep: one of each kind that the lists of layers tell apart."""
    lists = [value for value in fields.values() if isinstance(value, list | tuple) and len(value) == depth]
    different = overrides(fields)
    kinds: dict[str, int] = {}
    for layer in range(depth):
        kinds.setdefault(str([different.get(layer), *(value[layer] for value in lists)]), layer)
    kept = sorted(kinds.values())[:MOST]
    rest = (layer for layer in range(depth) if layer not in kept)
    while len(kept) < min(FEWEST, depth):
        kept.append(next(rest))
    return sorted(kept)


def _shorter(name: str, value: Sequence[Any], kept: dict[int, list[int]], fields: dict[str, Any]) -> Sequence[Any]:
    """Return a list of layers, of layers' numbers or of sizes for the tiny model."""
    kind: Callable[[Iterable[Any]], Sequence[Any]] = tuple if isinstance(value, tuple) else list
    if len(value) in kept and not name.endswith(("_ids", "_id")):
        chosen = [value[layer] for layer in kept[len(value)]]
        return kind(tiny_size(name, item, fields) if _is_size(item) else item for item in chosen)
    if not all(_is_size(item) for item in value):
        return kind(dict.fromkeys(value)) if name == "block_types" else value  # RecurrentGemma repeats them
    if name == "depths":
        return kind(1 for _ in value)
    if name in ("hidden_sizes", "conv_dim", "tdnn_dim", "neck_hidden_sizes", "embed_dims", "encoder_hidden_sizes"):
        largest = max(value)
        return kind(max(8, item * HIDDEN // largest // 8 * 8) for item in value)
    if name.startswith("vision_feature_layer"):
        return kind(max(item, -FEWEST) for item in value)
    if kept and any(word in name for word in ("index", "indices", "layers")) and max(value) < max(kept):
        deepest = len(kept[max(kept)]) - 1
        return kind(sorted({min(item, deepest) for item in value}))
    return kind(tiny_size(name, item, fields) for item in value) if "token" not in name else value

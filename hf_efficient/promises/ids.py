"""Special tokens of a tiny vocabulary: each keeps an id of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hf_efficient.promises.sizes import VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ID = re.compile(r"(token|start|end|blank|pad|eos|bos)_(ids?|index|indices)$|^(pad|mask|unk)_index$")
KEPT = 128
"""Ids below stay as they are: small ids have meanings, such as RoBERTa's padding at 1."""


def remap_ids(configs: list[PreTrainedConfig]) -> None:
    """Give every special token of a model's configurations an id below 256, the same where it was the same."""
    found = sorted({value for config in configs for _, values in _fields(config) for value in values})
    stay = [value for value in found if 0 <= value < KEPT]
    move = [value for value in found if value >= KEPT]
    free = iter(range(VOCABULARY - 1, KEPT - 1, -1))
    new = {value: value for value in stay} | {value: next(free, VOCABULARY - 1) for value in move}
    for config in configs:
        for name, values in list(_fields(config)):
            old = getattr(config, name)
            value: Any = [new.get(one, one) for one in old] if isinstance(old, list | tuple) else new.get(old, old)
            if value != old and list(values) != value:
                setattr(config, name, value)


def special_ids(configs: list[PreTrainedConfig]) -> set[int]:
    """Return the ids of all special tokens of a model's configurations."""
    return {value for config in configs for _, values in _fields(config) for value in values if value >= 0}


def _fields(config: PreTrainedConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names of the fields that hold special tokens, with their ids."""
    fields: list[tuple[str, tuple[int, ...]]] = []
    for name, value in vars(config).items():
        if not ID.search(name) or name.endswith("audio_start_id_"):
            continue
        ids = value if isinstance(value, list | tuple) else (value,)
        if ids and all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
            fields.append((name, tuple(ids)))
    return fields

"""A trained weight as its optimizer sees it, and the group that Trainer puts it into."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

_NEVER_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Trainer.get_decay_parameter_names; weights of nn.LayerNorm have one dimension, and so are left out by it as well."""


class Weight(NamedTuple):
    """A tensor that an optimizer trains."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    embedding: bool = False
    """Whether it is the weight of an nn.Embedding, a head tied to it included."""
    path: str = ""
    """Its name in the model, such as `model.layers.0.mlp.up_proj.weight`."""
    linear: bool = True
    """Whether it is the weight of an nn.Linear, where it has two dimensions: GaLore and APOLLO project no others."""

    @property
    def numel(self) -> int:
        """Return how many elements it has."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Return whether Trainer lets weight decay act on it."""
        return len(self.shape) >= 2 and not _NEVER_DECAYED.search(self.path.lower())

    def aimed_at(self, targets: str | Sequence[str] | None) -> bool:
        """Return whether `optim_target_modules` means it: a regular expression, parts of names, or `all-linear`.

        Source: transformers.trainer_utils.check_target_module_exists.
        """
        module, _, kind = self.path.rpartition(".")
        if kind != "weight" or len(self.shape) != 2 or self.embedding or not self.linear or targets is None:
            return False
        if isinstance(targets, str):
            return targets.replace("_", "-") == "all-linear" or bool(re.fullmatch(targets, module))
        return any(part in module for part in targets)

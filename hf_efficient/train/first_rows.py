"""A few rows of a trainer's data as one batch, where taking them leaves no trace."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hf_efficient.train.items import Batch
from hf_efficient.train.undisturbed import random_numbers_kept

if TYPE_CHECKING:
    from transformers import Trainer

ROWS = 8
"""Enough for unequal parts; no more than a micro-batch where that is smaller, but three."""


def first_batch(trainer: Trainer) -> Batch | None:
    """Return a few rows as the trainer would collate them, None where the first window has to be waited for."""
    from transformers import Trainer as Stock

    data = trainer.train_dataset
    if type(trainer).get_train_dataloader is not Stock.get_train_dataloader or "get_train_dataloader" in vars(trainer):
        return None
    if not (_is_still(data) and _is_whole(trainer)):
        return None
    columns = trainer._signature_columns
    rows = min(ROWS, max(3, trainer.args.per_device_train_batch_size), len(data))
    try:
        with random_numbers_kept():
            batch = _collated(trainer, rows)
    except Exception:  # whatever this collator needs, the training's own loader has it
        return None
    finally:
        trainer._signature_columns = columns
    return batch if isinstance(batch, Mapping) else None


def _collated(trainer: Trainer, rows: int) -> Any:
    from datasets import Dataset

    collate, data = _own_copy(trainer.data_collator), trainer.train_dataset
    if isinstance(data, Dataset):
        data = trainer._remove_unused_columns(data)
    else:
        collate = trainer._get_collator_with_removed_columns(collate)
    # From all over the data: rows that are sorted by class hide what a loss does with several classes.
    return collate([copy.deepcopy(data[number * len(data) // rows]) for number in range(rows)])


def _is_still(data: Any) -> bool:
    """Say whether rows can be read without changing what is read next."""
    from datasets import Dataset

    if isinstance(data, Dataset):
        return len(data) > 0 and data.format["type"] != "custom"
    return isinstance(data, (list, tuple)) and len(data) > 0


def _is_whole(trainer: Trainer) -> bool:
    """Say whether this process holds all weights where it will train them."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return False
    weights = list(trainer.model.parameters())
    sharded = any(hasattr(weight, "ds_id") or hasattr(weight, "device_mesh") for weight in weights)
    return not sharded and {weight.device.type for weight in weights} <= {trainer.args.device.type}


def _own_copy(collator: Any) -> Any:
    """Return a copy with random generators of its own; models and tokenizers in it are shared.

    Raises ValueError for a function that keeps variables or random generators, which nobody can copy.
    """
    import torch
    from transformers import PreTrainedTokenizerBase
    from transformers.processing_utils import ProcessorMixin

    if isinstance(collator, FunctionType) and _keeps_state(collator):
        raise ValueError("a function with variables of its own")
    kept = (torch.nn.Module, PreTrainedTokenizerBase, ProcessorMixin)
    shared = [value for value in getattr(collator, "__dict__", {}).values() if isinstance(value, kept)]
    return copy.deepcopy(collator, {id(value): value for value in shared})


def _keeps_state(function: FunctionType) -> bool:
    """Say whether calling `function` may change variables of its own, its defaults or a generator it finds by name."""
    import numpy as np
    import torch

    generators = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return bool(function.__closure__) or any(isinstance(value, generators) for value in [*named, *defaults])

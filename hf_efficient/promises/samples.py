"""The subject of a trial: a tiny model of the kind that a name says, or a model and data of yours."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.promises.batches import Rows as MadeRows
from hf_efficient.promises.batches import collate
from hf_efficient.promises.rows import made_rows
from hf_efficient.promises.subject import Collate, Rows, Subject
from hf_efficient.promises.tiny import load, load_config, tiny_folder
from hf_efficient.train.collator import Padded, make_collator

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TOKENS = 128
"""Longest row of a user's own texts, in tokens: enough to differ in length, short enough to be checked in seconds."""


@contextmanager
def tiny_subject(
    config: PreTrainedConfig, name: str, samples: int, *, collator: Collate | None = None
) -> Iterator[Subject]:
    """Give a tiny model of the structure of `config`, with made rows, while the block lasts."""
    from transformers import AutoTokenizer

    with TemporaryDirectory() as folder:
        tiny_folder(config, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = load(folder)

        def made(plan: Plan, model: nn.Module) -> Collate:
            return collator or _collator(plan, model, tokenizer)

        yield Subject(name, lambda **keywords: load(folder, **keywords), made_rows(model, samples), made)


def _collator(plan: Plan, model: Any, tokenizer: PreTrainedTokenizerBase) -> Collate:
    if plan["collator"].get("padding_free"):
        return make_collator(plan, tokenizer, model)
    padding = {key: value for key, value in plan["collator"].items() if key == "pad_to_multiple_of"}
    return replace(collate(model, tokenizer), padding=padding)


def your_subject(model: str | nn.Module, data: Any, samples: int, *, collator: Collate | None = None) -> Subject:
    """Return a model of yours, by name or as a module, with the first of your rows."""
    raise NotImplementedError

"""The subject of a trial: a tiny model of the kind that a name says, or a model and data of yours."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hf_efficient.emit.head import shifts_labels
from hf_efficient.plan import Plan
from hf_efficient.promises.apart import apart
from hf_efficient.promises.batches import collate
from hf_efficient.promises.rows import made_rows
from hf_efficient.promises.subject import Collate, Subject
from hf_efficient.promises.tiny import head_class, load, load_config, tiny_folder
from hf_efficient.train.collator import make_collator
from hf_efficient.train.text import load_texts, token_rows
from hf_efficient.wording import one_sentence

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

LEAST = 3
"""Rows of yours at least: two updates, the last of them shorter."""
TOKENS = 128
"""Longest row of a user's own texts, in tokens: enough to differ in length, short enough to be checked in seconds."""


@contextmanager
def tiny_subject(
    config: PreTrainedConfig, name: str, samples: int, *, collator: Collate | None = None
) -> Iterator[Subject]:
    """Give a tiny model of the structure of `config`, with made rows, while the block lasts."""
    from transformers import AutoTokenizer

    with TemporaryDirectory() as folder:
        with apart():
            tiny_folder(config, folder)
            tokenizer, model = AutoTokenizer.from_pretrained(folder), load(folder)

        def made(plan: Plan, model: nn.Module) -> Collate:
            return collator or _collator(plan, model, tokenizer)

        yield Subject(name, lambda **keywords: load(folder, **keywords), made_rows(model, samples), made)


def _collator(plan: Plan, model: Any, tokenizer: PreTrainedTokenizerBase) -> Collate:
    if plan["collator"].get("padding_free"):
        return make_collator(plan, tokenizer, model)
    padding = {key: value for key, value in plan["collator"].items() if key == "pad_to_multiple_of"}
    return replace(collate(model, tokenizer), padding=padding)


def your_subject(model: str | nn.Module, data: Any, samples: int, *, collator: Collate | None = None) -> Subject:
    """Return a model of yours, by name or as a module, with the first `samples` of your rows.

    `data` holds rows of the model's inputs, or names a file of texts, which a language model learns to continue.
    Raises ValueError for data that this model cannot take.
    """
    from torch import nn

    if not isinstance(model, str | nn.Module):
        raise ValueError(f"A model is a Hub id, a folder or a module, and {model!r} is none.")
    if data is None:
        raise ValueError("A module of yours needs rows of its inputs: pass data=[{'input_ids': [...], ...}, ...].")
    texts = load_texts(data)[0] if isinstance(data, str) else None  # before the model, which takes longer
    with apart():
        load = _named(model) if isinstance(model, str) else lambda **_: copy.deepcopy(model)
        tokenizer = _tokenizer(model) if isinstance(model, str) else _made_tokenizer(model, collator)
        rows = data if texts is None else _text_rows(load(), tokenizer, texts)
    rows = [rows[number] for number in range(min(samples, len(rows)))]
    if wrong := next((row for row in rows if not isinstance(row, Mapping)), None):
        raise ValueError(f"A row is a mapping of the model's inputs, and {wrong!r} is none.")
    if len(rows) < LEAST:
        raise ValueError(
            f"At least {LEAST} rows are needed, for two updates of which one is short; there are {len(rows)}."
        )

    def made(plan: Plan, model: nn.Module) -> Collate:
        return collator or _collator(plan, model, tokenizer)

    return Subject(model if isinstance(model, str) else type(model).__name__, load, rows, made)


def _named(name: str) -> Any:
    """Return what loads a model by name, of the class that its configuration names."""
    kind = head_class(load_config(name))

    def load(**keywords: Any) -> Any:
        try:
            return kind.from_pretrained(name, **keywords).train()
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(f"Cannot load the model {name}: {one_sentence(error)[:400]}") from None

    return load


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # whatever the readers of tokenizers raise
        raise ValueError(
            f"With --data the model itself is trained, and {name} has no tokenizer that can be loaded: "
            f"{one_sentence(error)[:300]}"
        ) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _made_tokenizer(model: Any, collator: Any) -> Any:
    """Return a tokenizer that pads for a module of yours; None where your own collator does."""
    from hf_efficient.promises.words import word_tokenizer

    if collator is not None:
        return None
    if not hasattr(model, "config"):
        raise ValueError(f"How rows of a {type(model).__name__} become a batch is not known: pass collator=.")
    return word_tokenizer(model.config)


def _text_rows(model: Any, tokenizer: Any, texts: Any) -> Any:
    """Return texts as rows for a causal language model."""
    if not shifts_labels(model):
        raise ValueError(
            f"A file of texts is for causal language models, and {type(model).__name__} is none: call verify() from "
            "Python with rows of its inputs, or leave --data out for a tiny model with made rows."
        )
    return token_rows(texts, tokenizer, TOKENS)

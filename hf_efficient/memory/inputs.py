"""A batch without data, for the head of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from hf_efficient.memory.build import body_of
from hf_efficient.memory.results import Batch
from hf_efficient.memory.values import without_data
from hf_efficient.promises.batches import JOINED, named_images
from hf_efficient.promises.rows import CHOICES, made_rows, row_kind

SHORT = 16
"""Letters of a target where nothing says how many."""

TARGETS = ("target", "speech", "letters")
"""Heads whose labels have a length of their own."""
TEXT = ("causal", "masked", "tokens", "sequence", "answer", "choice", "target", "pretraining", "replaced")


def longest(config: Any) -> int | None:
    """Return how many tokens a model's configuration says it reads at most."""
    text = getattr(config, "get_text_config", lambda: config)()
    found = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(found) if isinstance(found, int) and found > 0 else None


def batch_for(model: nn.Module, batch: Batch, *, packed: bool = False) -> dict[str, torch.Tensor]:
    """Return a micro-batch for the head of `model`, of tensors made where this is called.

    Text is batch.size x batch.seq_len tokens; images and sounds are as the configuration says. Raises ValueError where
    a length is missing or longer than the model reads, and for a head that no rows can be made for. `packed`: rows of a
    causal language model become one, in which each is a document.
    """
    inner: Any = body_of(model)
    kind = _kind(inner)
    if batch.target_len is not None and kind not in TARGETS:
        raise ValueError(
            f"{type(inner).__name__} has no targets of their own length: leave target_len (--target-len) out."
        )
    if packed and kind == "causal":
        return _packed(batch.size, _length(inner, batch))
    return _text(inner, kind, batch) if kind in TEXT else _others(inner, kind, batch)


def _kind(inner: Any) -> str:
    try:
        return row_kind(inner)
    except ValueError:
        raise ValueError(
            f"There is no made batch for a {type(inner).__name__}: take a head of transformers for language modeling, "
            "classification, question answering, speech, images or images with text."
        ) from None


def lengths_assumed(model: nn.Module, batch: Batch) -> list[str]:
    """Return what is taken for a length that `batch` does not give."""
    inner: Any = body_of(model)
    kind = _kind(inner)
    if batch.target_len is not None or kind not in TARGETS:
        return []
    taken = "as long as their sources" if kind == "target" else f"{_letters(inner, kind, batch, SHORT)} tokens long"
    return [f"Targets are {taken}; target_len (--target-len) says otherwise."]


def _packed(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return one row that holds `rows` documents: positions restart, and there is no mask."""
    with _disable_current_modes():
        positions = torch.arange(length).repeat(rows)[None]
    return {
        "input_ids": _ids(1, rows * length),
        "labels": _ids(1, rows * length),
        "position_ids": without_data(positions),
    }


def _length(inner: Any, batch: Batch) -> int:
    limit = longest(inner.config)
    if batch.seq_len is None:
        raise ValueError(
            f"{type(inner).__name__} reads tokens, and their number decides its memory: pass seq_len, at the command "
            f"line --seq-len{f' (at most {limit})' if limit else ''}."
        )
    learned = next((m for m in inner.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == limit), None)
    if limit and learned is not None and learned.padding_idx is not None:
        limit -= learned.padding_idx + 1  # RoBERTa counts from behind its padding
    if limit and learned is not None and batch.seq_len > limit:
        raise ValueError(
            f"{type(inner).__name__} has {limit} learned positions and cannot read {batch.seq_len} tokens: pass a "
            f"seq_len of at most {limit}."
        )
    return batch.seq_len


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _text(inner: Any, kind: str, batch: Batch) -> dict[str, torch.Tensor]:
    rows, length = batch.size, _length(inner, batch)
    shape = (rows, CHOICES, length) if kind == "choice" else (rows, length)
    values = {"input_ids": _ids(*shape), "attention_mask": _mask(shape, batch.padding)}
    if kind == "answer":
        return values | {"start_positions": _ids(rows), "end_positions": _ids(rows)}
    if kind == "target":
        return values | {"labels": _ids(rows, batch.target_len or length)}
    if kind == "pretraining":
        values["next_sentence_label"] = _ids(rows)
    if kind in ("sequence", "choice"):
        return values | {"labels": _class_labels(inner, rows, kind)}
    return values | {"labels": _ids(rows, length)}


def _mask(shape: tuple[int, ...], padding: bool) -> torch.Tensor:
    """Return a mask of ones; with padding, the last token of every row but the first is one of padding."""
    with _disable_current_modes():
        mask = torch.ones(shape, dtype=torch.long)
        if padding:
            mask[1:, ..., -1] = 0
    return without_data(mask)


def _class_labels(inner: Any, rows: int, kind: str) -> torch.Tensor:
    labels, problem = int(inner.config.num_labels), getattr(inner.config, "problem_type", None)
    if kind == "sequence" and problem == "multi_label_classification":
        return torch.zeros(rows, labels)
    if kind == "sequence" and (problem == "regression" or labels == 1):
        return torch.zeros(rows, labels) if labels > 1 else torch.zeros(rows)
    return _ids(rows)


def _others(inner: Any, kind: str, batch: Batch) -> dict[str, torch.Tensor]:
    """Return a batch of images or sounds, each as large as the one that is made for that head.

    Whole numbers keep their values: where in a text the image stands, and how large it is.
    """
    with _disable_current_modes():
        row = {name: torch.as_tensor(value) for name, value in made_rows(inner, 1)[0].items()}
    if "input_values" in row and row["input_values"].ndim == 1:
        row["input_values"] = torch.zeros(_samples(inner, batch))
    elif batch.seq_len is not None and kind != "picture_text":
        raise ValueError(
            f"{type(inner).__name__} reads images or sounds of the size that its configuration says: leave seq_len "
            "(--seq-len) out."
        )
    values = {}
    for name, one in row.items():
        if name in ("input_ids", "labels") and one.ndim == 1:
            one = _as_long_as(one, _letters(inner, kind, batch, len(one) if kind == "picture_text" else SHORT))
        values[name] = _repeated(one, batch.size, name in JOINED and "image_grid_thw" in row, inner.dtype)
    named = named_images(inner)
    if named and "pixel_values" in values:
        values[named] = (values["input_ids"] == inner.config.image_token_id).int()
    return values


def _repeated(one: torch.Tensor, rows: int, joined: bool, dtype: torch.dtype) -> torch.Tensor:
    shape = (rows * one.shape[0], *one.shape[1:]) if joined else (rows, *one.shape)
    if one.is_floating_point():
        made = torch.empty(shape, dtype=dtype)
        with _disable_current_modes():
            made._value = torch.ones((), dtype=dtype).expand(shape)  # type: ignore[attr-defined]
        return made
    with _disable_current_modes():
        real = torch.cat([one] * rows) if joined else torch.stack([one] * rows)
    return without_data(real)


def _as_long_as(tokens: torch.Tensor, length: int) -> torch.Tensor:
    with _disable_current_modes():
        return torch.cat([tokens, tokens[-1:].expand(max(0, length - len(tokens)))])[:length]


def _samples(inner: Any, batch: Batch) -> int:
    if batch.seq_len is None:
        raise ValueError(
            f"{type(inner).__name__} reads sound as a wave, and its length decides the memory: pass seq_len, at the "
            "command line --seq-len, in samples (160000 are 10 seconds at 16 kHz)."
        )
    return batch.seq_len


def _letters(inner: Any, kind: str, batch: Batch, least: int) -> int:
    """Return the tokens of a text beside an image, or of the target of a sound: without a length, the longest."""
    if kind == "picture_text":
        return max(_length(inner, batch), least)
    return batch.target_len or getattr(inner.config, "max_target_positions", None) or least

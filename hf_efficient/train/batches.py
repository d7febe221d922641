"""A batch and parts of it: what a loss has to be tried on to learn what it is the mean over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.train.items import IGNORED, Batch, Counter

if TYPE_CHECKING:
    import torch


def copied(batch: Batch) -> dict[str, Any]:
    """Return `batch` with its own dicts, from which a loss may pop; tensors are shared."""
    return {key: copied(value) if isinstance(value, Mapping) else value for key, value in batch.items()}


def try_batches(batches: Sequence[Batch], counter: Counter) -> tuple[Batch, list[Batch]]:
    """Return a batch and unequal parts of it; the parts are empty where it cannot be divided.

    Rows are divided; a batch of one row is first joined with the others, and else its labels are divided. With labels
    of -100 about, the first part loses half of its labels, so that rows and labels are not in proportion. A batch
    without any label, whose loss may be 0 / 0, gets some.
    """
    whole = max(batches, key=lambda batch: int(counter(batch)))
    rows = row_count(whole, counter.key)
    if rows < 2:
        whole = _joined(batches) or whole
        rows = row_count(whole, counter.key)
    cut = max(1, rows // 3)
    if counter.counts_labels and not int(counter(whole)):
        whole = {**whole, counter.key: _some_labels(whole[counter.key], cut)}
    if rows < 2:
        return whole, _by_labels(whole, counter)
    if counter.counts_labels and bool(whole[counter.key].eq(IGNORED).any()):
        labels = whole[counter.key].clone()
        labels[:cut] = _thinned(labels[:cut], 0)
        whole = {**whole, counter.key: labels}
    return whole, [sliced(whole, 0, cut, rows=rows), sliced(whole, cut, rows, rows=rows)]


def row_count(batch: Batch, key: str) -> int:
    """Return the number of rows, 0 where not every tensor has as many: the batch then cannot be divided."""
    import torch

    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor) and value.dim()]
    rows = len(batch[key])
    others = [value for value in batch.values() if isinstance(value, (list, tuple, Mapping))]
    return rows if not others and all(len(value) == rows for value in tensors) else 0


def sliced(batch: Batch, start: int, stop: int, *, rows: int) -> Batch:
    """Return rows `start` to `stop` of a batch of `rows`."""
    import torch

    return {
        key: value[start:stop] if isinstance(value, torch.Tensor) and value.dim() and len(value) == rows else value
        for key, value in batch.items()
    }


def _some_labels(labels: torch.Tensor, cut: int) -> torch.Tensor:
    """Return `labels` with some that are valid in each row, and more of them in the rows from `cut` on."""
    labels = labels.clone()
    labels[..., -1:] = 0
    labels[cut:][..., -3:] = 0
    return labels


def _thinned(labels: torch.Tensor, first: int) -> torch.Tensor:
    """Return `labels` with every second valid one ignored, so that those numbered `first`, `first` + 2 ... stay."""
    number = labels.ne(IGNORED).flatten().cumsum(0).sub(1).view_as(labels)
    return labels.where(number % 2 == first, IGNORED)


def _by_labels(batch: Batch, counter: Counter) -> list[Batch]:
    """Return two copies of `batch` that share out its labels, where -100 is seen to be a label that is ignored."""
    # Elsewhere -100 may be out of range, which on a GPU spoils the whole process.
    if not counter.counts_labels or not bool(batch[counter.key].eq(IGNORED).any()):
        return []
    return [{**batch, counter.key: _thinned(batch[counter.key], first)} for first in (0, 1)]


def _joined(batches: Sequence[Batch]) -> Batch | None:
    """Return up to four micro-batches as one, padded to a common shape, else None."""
    import torch

    batches = batches[:4]
    if len(batches) < 2 or any(batch.keys() != batches[0].keys() for batch in batches):
        return None
    joined: dict[str, Any] = {}
    for key, first in batches[0].items():
        values = [batch[key] for batch in batches]
        if not isinstance(first, torch.Tensor) or any(value.dim() != first.dim() for value in values):
            return None
        if not first.dim():
            joined[key] = first
            continue
        shape = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
        if any(list(value.shape[1:]) != shape for value in values) and "attention_mask" not in batches[0]:
            return None
        joined[key] = torch.cat([_padded(value, shape, IGNORED if "label" in key else 0) for value in values])
    return joined


def _padded(value: torch.Tensor, shape: list[int], filler: int) -> torch.Tensor:
    full = value.new_full((len(value), *shape), filler)
    full[tuple(slice(size) for size in value.shape)] = value
    return full

"""What a loss may be the mean over: ways to count the items of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Batch = Mapping[str, Any]
IGNORED = -100
"""The label that losses skip."""


@dataclass(frozen=True)
class Counter:
    """One way to count items: of the batch's tensor `key`, by `how`, which is also the word for them in a sentence."""

    key: str
    how: str

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the number of items of `batch`, a tensor without dimensions."""
        import torch

        if self.key not in batch:
            raise ValueError(
                f"A batch has no {self.key!r}, by which items are counted elsewhere: give all rows the same keys."
            )
        values = batch[self.key]
        if self.how == "rows":
            return torch.tensor(len(values), device=values.device)
        if self.how == "elements of labels":
            return torch.tensor(values.numel(), device=values.device)
        if self.how == "tokens":
            there: torch.Tensor = values.ne(0)
        else:
            there = (values[..., 1:] if self.how == "shifted labels" else values).ne(IGNORED)
        return there.sum()

    def with_an_item(self, batch: Batch) -> Batch:
        """Return `batch`, with its last label valid if it has no item: its mean is then finite and can weigh 0."""
        if not self.counts_labels:
            return batch
        labels = batch[self.key].contiguous().clone()
        last = labels.view(-1)[-1:]
        # A comparison and no branch: a branch would wait for the GPU in each micro-batch.
        last.copy_(last.where(self(batch) > 0, last.new_zeros(())))
        return {**batch, self.key: labels}

    @property
    def counts_labels(self) -> bool:
        """Say whether labels of -100 are no items."""
        return self.how in ("labels", "shifted labels")


def counters(batch: Batch, *, names: Iterable[str], shifted: bool) -> list[Counter]:
    """Return the ways to count the items of `batch`, the likeliest first; `names` are the keys that may hold labels."""
    import torch

    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor) and value.dim()}
    found = [Counter("shift_labels", "labels")] if "shift_labels" in tensors else []
    labels = [key for key in dict.fromkeys(["labels", *names]) if key in tensors]
    for key in labels:
        by_label = [Counter(key, "labels")]
        if tensors[key].dim() > 1 and not tensors[key].is_floating_point():
            by_label.insert(0 if shifted else 1, Counter(key, "shifted labels"))
        found += by_label if not tensors[key].is_floating_point() else []
        found.append(Counter(key, "elements of labels"))
    first = next((key for key in [*labels, *tensors] if key in tensors), None)
    if first is not None:
        found.append(Counter(first, "rows"))
    if "attention_mask" in tensors:
        found.append(Counter("attention_mask", "tokens"))
    return found


def label_items(batch: Batch, *, shifted: bool) -> torch.Tensor:
    """Count the labels of `batch` that a loss counts; `shifted` leaves out each row's first, which nothing predicts."""
    if "shift_labels" in batch:
        return Counter("shift_labels", "labels")(batch)
    return Counter("labels", "shifted labels" if shifted else "labels")(batch)

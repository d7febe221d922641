"""Try a loss on a batch and its parts, to learn what it is the mean over and whether it divides by num_items_in_batch.

Nothing is known by name: a loss is a function of a batch and a number of items, and is asked four questions.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hf_efficient.emit.head import shifts_labels
from hf_efficient.train.batches import copied, try_batches
from hf_efficient.train.items import IGNORED, Batch, Counter, counters
from hf_efficient.train.undisturbed import random_numbers_kept, training_batch_norms, undisturbed
from hf_efficient.wording import one_sentence

if TYPE_CHECKING:
    import torch
    from torch import nn

LossOf = Callable[[Batch, "torch.Tensor | None"], "torch.Tensor"]
Agree = Callable[[list[float]], list[float]]
FACTOR = 1024
"""Much, and a power of two, so that a division by it rounds nothing."""


@dataclass(frozen=True)
class LossKind:
    """What a loss was found to be.

    `divides` says that it is its sum over items divided by num_items_in_batch, else it drops that number; `has_mean`
    that it is a mean when it gets none. `problem` says why accumulation changes its training, `part` if that is because
    a part of it drops the number; `untried` says why it could not be tried; `counter` counts its items.
    """

    counter: Counter | None = None
    divides: bool = False
    has_mean: bool = True
    problem: str = ""
    part: bool = False
    untried: str = ""


@dataclass(frozen=True)
class TriedLoss:
    """A loss and its model, with what is known of them before they are tried; `sees_items` if it gets the number."""

    loss_of: LossOf
    model: nn.Module
    sees_items: bool = True
    names: Iterable[str] = ("labels",)
    agree: Agree = field(default=lambda numbers: numbers)

    def labels_in(self, batch: Batch) -> list[str]:
        """Return the keys of tensors that may be labels."""
        import torch

        tensors = [key for key, value in batch.items() if isinstance(value, torch.Tensor) and value.dim()]
        return sorted(key for key in tensors if key in {*self.names} or "label" in key)


def probe(subject: TriedLoss, batches: Sequence[Batch]) -> LossKind:
    """Return what the loss is, after some forward passes over `batches` that leave no trace.

    All processes have to call it together, and come to the same verdict.
    """
    found = counters(batches[0], names=subject.names, shifted=shifts_labels(subject.model))
    # Tensors and lists that differ between processes would make them wait for each other for ever.
    if not _alike(subject, found, batches[0]):
        return LossKind(untried="its processes have batches of different kinds")
    if not found:
        return LossKind(untried="its batches hold no tensor that could be counted")
    norms = bool(training_batch_norms({module: module.training for module in subject.model.modules()}))
    with undisturbed(subject.model):
        trial = _Trial(subject, found, batches)
        evidence = subject.agree(trial.evidence())
    verdict = _verdict(evidence, found, norms=norms, noise=_noise(subject.model))
    # Sharded weights stay half prepared after an error, and the training then stops with another one.
    failed = verdict.untried and verdict.counter is None and trial.error
    return replace(verdict, untried=f"{verdict.untried}: {trial.error}") if failed else verdict


def _alike(subject: TriedLoss, found: list[Counter], batch: Batch) -> bool:
    """Say whether all processes have the same ways to count, and will try their loss as often."""
    mark = zlib.crc32(repr((found, subject.sees_items, subject.labels_in(batch))).encode())
    halves = [mark % 2**16, mark // 2**16]  # numbers that 32-bit floats hold
    agreed = subject.agree([*map(float, halves), *(-float(half) for half in halves)])
    return [-number for number in agreed[2:]] == agreed[:2]


class _Trial:
    """The forward passes of one process: as many in each, because a loss may wait for the other processes."""

    def __init__(self, subject: TriedLoss, found: list[Counter], batches: Sequence[Batch]) -> None:
        self.subject, self.found = subject, found
        self.whole, parts = try_batches(batches, found[0])
        self.divided, self.parts = bool(parts), parts or [self.whole] * 2
        self.error = ""

    def evidence(self) -> list[float]:
        """Return numbers of which the largest of all processes counts; inf where something cannot be tried."""
        items = self.found[0](self.whole).float().clamp(min=1)
        one = self.loss(self.whole, items) if self.subject.sees_items else 0.0
        many = self.loss(self.whole, items * FACTOR) if self.subject.sees_items else 0.0
        mean = self.loss(self.whole, None)
        again = self.loss(self.whole, None if math.isfinite(mean) else items, seed=1)
        means = [self.loss(part, None) for part in self.parts]
        sums = [self.loss(part, items) for part in self.parts] if self.subject.sees_items else []
        return [
            _error(FACTOR * many, one) if self.subject.sees_items else math.inf,
            _error(many, one) if self.subject.sees_items else 0.0,
            0.0 if math.isfinite(mean) else math.inf,
            _error(again, mean if math.isfinite(mean) else one),
            0.0 if self.divided else math.inf,
            self._moves_with_first_labels(items, mean),
            _error(sum(means), mean),
            _error(sum(sums), one),
            *(self._mean_error(counter, mean, means) for counter in self.found),
            *(self._count_error(counter, one * float(items), mean) for counter in self.found),
        ]

    def loss(self, batch: Batch, items: torch.Tensor | None, *, seed: int = 0) -> float:
        """Return the loss of `batch`, nan where it cannot be had."""
        import numpy as np
        import torch

        try:
            with random_numbers_kept():
                random.seed(seed)
                np.random.seed(seed)
                torch.manual_seed(seed)
                return float(self.subject.loss_of(copied(batch), items))
        except Exception as error:  # a user's loss may fail in any way without the number of items, or on a part
            self.error = self.error or one_sentence(error)[:300]
            return math.nan

    def _mean_error(self, counter: Counter, mean: float, means: list[float]) -> float:
        """Return how far the means of the parts, weighed by their items, are from the mean of the whole."""
        if self._counts_others(counter, mean):
            return math.inf
        counts = [int(counter(part)) for part in self.parts]
        parts = sum(mean * count for mean, count in zip(means, counts, strict=True) if count)
        return _error(parts, mean * int(counter(self.whole)))

    def _count_error(self, counter: Counter, total: float, mean: float) -> float:
        """Return how far the count is from the sum of the losses divided by their mean."""
        return _error(mean * int(counter(self.whole)), total)

    def _counts_others(self, counter: Counter, mean: float) -> bool:
        """Say whether the loss has labels besides those counted, and not in proportion to them.

        Their share of an untrained model's loss is too even for sums to show it, but a loss moves by some bits.
        """

        def shares(count: Counter) -> list[float]:
            return [int(count(part)) / max(int(count(self.whole)), 1) for part in self.parts]

        others = False
        for key in self.subject.labels_in(self.whole):
            if key in (counter.key, "shift_labels"):
                continue
            labels = self.whole[key]
            other = Counter(key, "rows" if labels.dim() == 1 or labels.is_floating_point() else "labels")
            rolled = self.loss({**self.whole, key: labels.roll(1, 0)}, None)
            others |= rolled != mean and shares(other) != shares(counter)
        return others

    def _moves_with_first_labels(self, items: torch.Tensor, mean: float) -> float:
        """Return 2 if the first label of the rows matters, 1 if not, 0 if that cannot be tried."""
        key, how = self.found[0].key, self.found[0].how
        if key == "shift_labels" or how not in ("labels", "shifted labels") or self.whole[key].dim() < 2:
            return 0.0
        labels = self.whole[key]
        first = labels[..., :1]
        other = labels.ne(first) & labels.ne(IGNORED)
        changed = labels.clone()
        # a label that its row has elsewhere is a valid one, whatever the loss
        replaced = labels.gather(-1, other.int().argmax(-1, keepdim=True))
        changed[..., :1] = replaced.where(other.any(-1, keepdim=True), first)
        given = None if math.isfinite(mean) else items
        before = self.loss(self.whole, given)
        moved = self.loss({**self.whole, key: changed}, given) != before
        return 1.0 + moved if bool(other.any()) else 0.0


def _verdict(evidence: list[float], found: list[Counter], *, norms: bool, noise: float) -> LossKind:
    """Judge by the errors that all processes agree on."""
    divided, dropped, no_mean, chance, no_parts, first, as_sum, additive, *errors = evidence
    means, counts = errors[: len(found)], errors[len(found) :]
    divides, has_mean = divided <= 1e-4, not no_mean
    likely = [counter for counter in found if not (first and counter.how == ("labels", "shifted labels")[first > 1.5])]
    if math.isinf(divided) and not has_mean:
        return LossKind(untried="its loss could not be computed on a first batch without gradients", has_mean=has_mean)
    # A model that refuses the number is one that drops it.
    if not divides and dropped > 1e-4 and math.isfinite(dropped):
        share = "a part of its loss is not divided by num_items_in_batch, so that it counts once per micro-batch"
        return LossKind(problem=share, part=True, has_mean=has_mean)
    if chance > noise:
        return LossKind(likely[0], divides, has_mean, untried="its loss is random even without dropout")
    if no_parts and not (divides and has_mean):
        return LossKind(likely[0], divides, has_mean, untried="its batches cannot be divided")
    if divides and additive <= noise and as_sum <= noise:
        return LossKind(likely[0], divides, has_mean=False)  # without the number of items it returns the sum
    means = [0.0] * len(found) if no_parts or not has_mean else means
    counts = counts if divides and has_mean else [0.0] * len(found)
    fits = [counter for counter, *errors in zip(found, means, counts, strict=True) if max(errors) <= noise]
    fits = [counter for counter in fits if counter in likely]
    if fits and (no_parts or not divides or additive <= noise):
        return LossKind(fits[0], divides, has_mean)
    return LossKind(problem=_why(as_sum <= noise, norms), divides=divides, has_mean=has_mean)


def _why(is_sum: bool, norms: bool) -> str:
    if is_sum:
        return "its loss is a sum over rows and not a mean"
    if norms:
        return "its batch norm makes the rows of a micro-batch depend on each other"
    return (
        "its loss is not a mean over items: rows depend on each other, as in contrastive or load-balancing losses, "
        "or it adds means over different items or weighs items unequally"
    )


def _noise(model: nn.Module) -> float:
    """Return by how much two ways to compute the same loss may differ."""
    import torch

    dtypes = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    if dtypes & {torch.bfloat16, torch.float16} or getattr(model, "is_quantized", False):
        return 2e-2  # a loss of 4 in bfloat16 has neighbours at 3.98 and 4.03
    if not torch.cuda.is_available():
        return 3e-6
    return 1e-5 if torch.get_float32_matmul_precision() == "highest" else 1e-3


def _error(ours: float, theirs: float) -> float:
    """Return the relative error, inf where there is none; two zeros are equal in a way that proves nothing."""
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return math.inf
    return abs(ours - theirs) / max(abs(theirs), 1e-12)

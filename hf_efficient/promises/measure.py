"""Distances between what a run did and what torch alone does with the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from hf_efficient.promises.reference import Plain
from hf_efficient.promises.seen import Seen, parts

if TYPE_CHECKING:
    from torch import Tensor


EPS = 2.0**-23
"""Rounding of float32."""


@dataclass(frozen=True)
class Measured:
    """The worst update of a run: relative distances; None where there is nothing to compare.

    `norm_ratio` is the gradient's norm over the reference's, `aslant` their relative distance when both have norm 1,
    `where` the parameters that contribute most, `finite` is false where a gradient or an update is no number.
    """

    loss_diff: float | None = None
    gradient_diff: float | None = None
    norm_ratio: float | None = None
    aslant: float | None = None
    update_diff: float | None = None
    where: tuple[str, ...] = ()
    rounding: float = 0.0
    """How far off an update may look, since weights are float32 and it is taken from their difference."""
    finite: bool = True
    worst: int = 0
    """The update that the gradient's distances are of."""


def measure(seen: Seen, plain: Sequence[Plain], changes: Sequence[Tensor]) -> Measured:
    """Compare the gradients and losses of `seen` with those of `plain`, and its updates with `changes`."""
    finite = all(bool(update.gradient.isfinite().all() and update.change.isfinite().all()) for update in seen.updates)
    pairs = [
        (update.gradient, clipped(gradient, seen, number))
        for number, (update, reference) in enumerate(zip(seen.updates, plain, strict=False))
        if (gradient := reference.gradient(seen.names)) is not None
    ]
    if not pairs:
        return Measured(finite=finite)
    worst = max(range(len(pairs)), key=lambda number: relative(*pairs[number]))
    ours, theirs = pairs[worst]
    return Measured(
        loss_diff=_losses(seen, plain),
        gradient_diff=relative(ours, theirs),
        norm_ratio=_norm(ours) / max(_norm(theirs), 1e-30),
        aslant=relative(ours / max(_norm(ours), 1e-30), theirs / max(_norm(theirs), 1e-30)),
        update_diff=max((relative(u.change, c) for u, c in zip(seen.updates, changes, strict=False)), default=None),
        rounding=max((EPS / 2 * seen.size / max(_norm(c), 1e-30) for c in changes), default=0.0),
        where=_where(seen, ours, theirs),
        finite=finite,
        worst=worst,
    )


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the relative L2 distance of two vectors, in 64 bits."""
    return float((ours.double() - theirs.double()).norm()) / max(_norm(theirs), 1e-30)


def clipped(gradient: Tensor, seen: Seen, number: int) -> Tensor:
    """Return `gradient` clipped to the limit to which the run clipped at its update `number`, if it did."""
    if len(seen.clips) != len(seen.updates):
        return gradient
    limit, seen_norm = seen.clips[number]
    true = _norm(gradient)
    # torch's own norm of a large tensor is a little off on a CPU: 4e-4 at ten million elements.
    norm = seen_norm if abs(seen_norm - true) <= 1e-2 * true else true
    return gradient * min(1.0, limit / (norm + 1e-6))  # as torch has it


def _losses(seen: Seen, plain: Sequence[Plain]) -> float | None:
    pairs = list(zip(seen.losses, plain, strict=False))
    distances = [abs(ours - theirs.loss) / max(abs(theirs.loss), 1e-30) for ours, theirs in pairs]
    return max(distances) if distances and all(map(isfinite, distances)) else None


def _where(seen: Seen, ours: Tensor, theirs: Tensor) -> tuple[str, ...]:
    """Return the parameters that are farthest off, of those whose gradients are more than rounding."""
    named = list(zip(seen.names, parts(ours, seen), parts(theirs, seen), strict=True))
    floor = EPS * max((_norm(part) for _, _, part in named), default=0.0)
    off = {name: relative(a, b) for name, a, b in named if _norm(b) > floor}
    return tuple(sorted((name for name in off if off[name] > 1e-5), key=lambda name: -off[name])[:3])


def _norm(vector: Tensor) -> float:
    return float(vector.double().norm())

"""What was seen of one run: plain data, to be held against other runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Update:
    """One update, taken at the model's first weights: vectors in float32 on the CPU, in the order of `Seen.names`."""

    gradient: Tensor
    change: Tensor
    lr: float
    forwards: int
    samples: int
    missing: tuple[str, ...]
    """Parameters that are trained and had no gradient."""


@dataclass
class Seen:
    """What was seen of a run; `losses` has one mean loss per update where the run tells it."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size: float = 0.0
    """Norm of the weights that are trained."""
    updates: list[Update] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    clips: list[tuple[float, float]] = field(default_factory=list)
    """Limit and norm before clipping, of each call of torch's clip_grad_norm_, by whatever name."""
    asleep: tuple[str, ...] = ()
    """Modules with dropout, or the model itself (""), that ran in evaluation mode while they were trained."""
    redropped: tuple[str, ...] = ()
    """What drops otherwise while it is trained than when training began."""
    left_out: tuple[str, ...] = ()
    """Parameters that require gradients and that no optimizer has."""
    full_masks: bool = False
    """Did rows of several documents come with an attention mask that masks nothing?"""
    facts: dict[str, Any] = field(default_factory=dict)

    mended: bool = False
    values_clipped: bool = False
    settings: tuple[Any, ...] = ()
    """What the optimizers of the first update run with, learning rates aside."""
    report: str = ""
    """What `exact_accumulation` or `windows` said."""

    @property
    def oddly_clipped(self) -> bool:
        """Say whether gradients are clipped otherwise than once per update by their norm."""
        return self.values_clipped or (bool(self.clips) and len(self.clips) != len(self.updates))


def parts(vector: Tensor, seen: Seen) -> tuple[Tensor, ...]:
    """Return the part of a vector that belongs to each of `seen.names`."""
    split: Any = vector.split
    found: tuple[Tensor, ...] = split(seen.sizes)
    return found

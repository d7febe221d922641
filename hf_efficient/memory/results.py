"""What an estimate says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hf_efficient.memory.demand import Demand
    from hf_efficient.memory.reserve import Reserve

GIB = 2**30
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")
"""What lives on the card, from what stays to what passes."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of one micro-batch on one GPU, and of the evaluation."""

    size: int
    """Rows."""
    seq_len: int | None = None
    """Tokens of a row; None for what has none, such as images, and for a model's own longest."""
    target_len: int | None = None
    """Tokens of a target, for encoder-decoder models; None: as many as the source has."""
    eval_size: int | None = None
    """Rows of an evaluation batch; None: evaluation is not estimated."""
    eval_rows: int | None = None
    """Rows of the evaluation set, whose logits are kept where metrics are computed; None: none are kept."""
    padding: bool = False
    """Rows differ in length, so that attention gets a mask."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Live bytes of one training step, moment by moment."""

    parts: Mapping[str, Sequence[int]]
    """Part (see PARTS) -> its bytes at each moment."""
    phases: Sequence[str]
    """What computes at each moment: forward, recompute, backward, clipping or optimizer."""
    peak: int
    """Which moment is the highest."""
    label: str
    """What the peak is, such as `the fp32 logits of the loss`."""

    def live(self) -> list[int]:
        """Return all live bytes at each moment."""
        return [sum(column) for column in zip(*(self.parts[part] for part in PARTS), strict=True)]


HELD = ("timeline", "reserve", "demand", "batch", "cards")
"""Fields that JSON has in another form, or not."""


class CardFit(NamedTuple):
    """A card and whether the run fits on it."""

    gpu: str
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory of the fullest rank; GiB are 2**30 bytes. What is None is not known, or was not asked for."""

    model: str
    plan: str
    """The plan's tricks, spelled."""
    batch: Batch
    params: int
    trainable_params: int
    allocated_gib: float
    reserved_gib: float | None = None
    """What PyTorch's caching allocator holds at the most; on a named card, no more than there is."""
    device_gib: float | None = None
    """What nvidia-smi shows on the card that was asked about."""
    beside_gib: Mapping[str, float] = field(default_factory=dict)
    """What a process takes of that card outside the allocator: its name -> GiB."""
    gpus: int = 1
    """Ranks that train together."""
    gpu: str = ""
    """The card that was asked about, as the table names it; empty where none was."""
    capacity_gib: float | None = None
    """What a process can use of that card."""
    fits: bool | None = None
    tight: bool = False
    """It fits only because PyTorch's allocator gives back what it caches, which costs speed."""
    margin_gib: float | None = None
    """What is left of the capacity; negative where it does not fit."""
    breakdown: Mapping[str, float]
    """Part -> GiB at the peak; adds up to allocated_gib."""
    peak_at: str
    host_gib: float = 0.0
    """Host memory that offloading takes, per rank."""
    step_s: float | None = None
    """Of one update of the weights, on the card that was asked about."""
    tokens_per_s: float | None = None
    """Of one GPU, padding among them; rows per second of what has no tokens."""
    mfu: float | None = None
    """Share of the card's peak rate that goes into the model's own operations."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the step's time goes into; adds up to step_s."""
    moments: Mapping[str, float] = field(default_factory=dict)
    """Phase (forward, backward, clipping, optimizer, evaluation, resume) -> its own highest GiB."""
    assumptions: Sequence[str] = ()
    cards: Sequence[CardFit] = ()
    """Cards of the table, the smallest first; empty where one was named."""
    changes: Sequence[str] = ()
    """Where it does not fit: the cheapest changes that would make it fit, best first."""
    timeline: Timeline = field(repr=False)
    reserve: Reserve | None = field(default=None, repr=False)
    """What is allocated and freed, to be replayed on a card."""
    demand: Demand | None = field(default=None, repr=False)
    """What an update asks of any card."""

    @property
    def held_gib(self) -> float:
        """Return what PyTorch's allocator holds at the highest moment of the run, checkpoints and evaluation in it."""
        return max(self.reserved_gib or 0.0, self.allocated_gib, *self.moments.values())

    @property
    def taken_gib(self) -> float:
        """Return what the process takes of the card: what the allocator holds, and what lies beside it."""
        return self.held_gib + sum(self.beside_gib.values())

    def row(self) -> dict[str, Any]:
        """Return the estimate as JSON has it."""
        row = {name: value for name, value in vars(self).items() if name not in HELD}
        row["batch"] = vars(self.batch)
        row["cards"] = [fit._asdict() for fit in self.cards]
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in row.items()}

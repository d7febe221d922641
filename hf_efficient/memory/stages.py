"""Which sharding a run needs: what each takes of a rank, the least that fits, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hf_efficient.emit.engine_rules import fit_engine
from hf_efficient.emit.fsdp import own_checkpointing
from hf_efficient.machine import Machine
from hf_efficient.memory.changes import in_place
from hf_efficient.memory.estimate import estimate, estimator
from hf_efficient.memory.reading import read
from hf_efficient.memory.results import Batch, Estimate
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.trick import Trick
from hf_efficient.wording import one_sentence

NONE = "none"
"""Plain data parallelism: DDP."""
FAMILY = "sharding"
RANKS = ((NONE,), ("zero(1)",), ("zero(2)",), ("zero(3)", "fsdp"))
"""From the least sharding to the most; what stands together shards the same."""
OFFLOADED = (("zero(2, 'optimizer')",), ("zero(3, 'optimizer')",), ("zero(3, 'all')",))
"""Tried where nothing fits without host memory."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The plan with one sharding in the place of its own."""

    plan: str
    """The sharding, spelled; `none` is plain data parallelism."""
    estimate: Estimate | None = None
    """Of one rank; None where the two cannot be combined."""
    costs: float | None = None
    """Share of the speed that it loses against the least sharding, by step time; negative where it is faster."""
    why: str = ""
    """Why the two cannot be combined."""

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens of all GPUs together."""
        alone = self.estimate.tokens_per_s if self.estimate else None
        return alone * self.estimate.gpus if alone and self.estimate else None

    @property
    def fits(self) -> bool | None:
        """Return whether it fits on the card; None where no card was named, or there is nothing to fit."""
        return self.estimate.fits if self.estimate else None

    def row(self) -> dict[str, Any]:
        """Return the stage as JSON has it; `tokens_per_s` is of all GPUs together."""
        names = ("allocated_gib", "reserved_gib", "device_gib", "host_gib", "fits", "step_s")
        figures = {name: getattr(self.estimate, name, None) for name in names}
        return {"plan": self.plan, **figures, "tokens_per_s": self.tokens_per_s, "costs": self.costs, "why": self.why}


class Sharding(NamedTuple):
    """The plan as it was asked about, and with each sharding."""

    asked: Estimate
    stages: Sequence[Stage]
    """From the least sharding to the most; a sharding of the plan's own that is none of them comes last."""
    least: Stage | None
    """The least sharding that fits; None where none does, or no card was named."""

    def row(self) -> dict[str, Any]:
        """Return the stages as JSON has them."""
        return {"least": self.least.plan if self.least else None, "stages": [stage.row() for stage in self.stages]}


def stages(plan: Plan, model: Any, *, batch: Batch, machine: Machine | None = None, gpus: int) -> Sharding:
    """Return the estimate of `plan`, and of the plan with each sharding in the place of its own, on `gpus` ranks.

    Without `machine` no stage is the least, since nothing says what fits. Offloading is tried where nothing else fits.
    What cannot be combined is a stage with the reason. Raises ValueError for one GPU, and as `estimate` does.
    """
    if gpus == 1:
        raise ValueError("One GPU has nobody to share with: pass gpus=4 (--gpus 4) for the stages on four.")
    asked = estimate(plan, model, batch=batch, machine=machine, gpus=gpus)
    again = estimator(model, machine=machine, gpus=gpus)
    own = tuple(trick for trick in plan.tricks if trick.family == FAMILY)

    def tried(name: str) -> Stage:
        try:
            other = in_place(plan, FAMILY, *_named(name))
            _refuse(other)
            return Stage(plan=name, estimate=asked if _named(name) == own else again(other, batch))
        except ValueError as error:
            return Stage(plan=name, why=one_sentence(error))

    ranks = [*_each(RANKS, tried)]
    if machine is not None and not any(stage.fits for rank in ranks for stage in rank):
        ranks += _each(OFFLOADED, tried)
    if not any(_named(stage.plan) == own for rank in ranks for stage in rank):
        ranks += _each([[trick.name for trick in own]], tried)
    return _compared(asked, ranks)


def _each(names: Iterable[Sequence[str]], tried: Callable[[str], Stage]) -> Iterable[list[Stage]]:
    return ([tried(name) for name in rank] for rank in names)


def _named(name: str) -> tuple[Trick, ...]:
    return () if name == NONE else make_plan(name).tricks


def _refuse(plan: Plan) -> None:
    """Raise ValueError for what can be estimated, and would stop before its first step or not shard as it says."""
    fit_engine(plan, read(plan).optimizer["name"], door="trainer")
    own_checkpointing(plan, "trainer")


def _compared(asked: Estimate, ranks: Iterable[Sequence[Stage]]) -> Sharding:
    """Return the stages with what each costs; of those that shard the same, the faster is the lesser."""
    ranks = list(ranks)
    steps = [stage.estimate.step_s for rank in ranks for stage in rank if stage.estimate]
    told = [[_costed(stage, steps[0] if steps else None) for stage in rank] for rank in ranks]
    fitting = [[stage for stage in rank if stage.fits] for rank in told]
    least = next((max(rank, key=lambda stage: stage.tokens_per_s or 0.0) for rank in fitting if rank), None)
    return Sharding(asked, [stage for rank in told for stage in rank], least)


def _costed(stage: Stage, base_s: float | None) -> Stage:
    step_s = stage.estimate.step_s if stage.estimate else None
    return replace(stage, costs=1 - base_s / step_s) if base_s and step_s else stage

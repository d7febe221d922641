"""Published speeds: efficiencies found on all sources but one, and the steps of that one predicted with them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rows import Row

from hf_efficient.machine import Machine
from hf_efficient.memory.demand import Demand
from hf_efficient.memory.speed import ATTENTION, EFFICIENCY, Efficiency, family, speed
from hf_efficient.memory.traffic import Traffic
from hf_efficient.memory.work import Kernel

DIFFER = 1.05
"""Two plans are a pair where one is at least so much faster."""
UNCOSTED = ("fp8", "hand-written CUDA", "rows are shorter than seq")
"""Marks of rows whose kernels, or whose tokens, are not those of the trace."""
OLD = 2.0
"""FlashAttention-2 is about twice as fast as FlashAttention, which llm-foundry ran in Triton (arXiv 2307.08691)."""
FLAT = Efficiency(
    product=dict.fromkeys(EFFICIENCY.product, 0.75), attention=dict.fromkeys(EFFICIENCY.attention, 0.5),
    bandwidth=0.75, launch=1e-5, link=0.7, pcie=0.3, hidden=0.7, compiled=0.6, call=3e-5,
)  # fmt: skip
"""From where efficiencies are looked for: round numbers, the same for all cards."""
SWEEPS = 6
FACTORS = (0.7, 0.85, 0.93, 0.97, 1.03, 1.07, 1.15, 1.4)
MOST = 0.97
BY_FAMILY = ("product", "attention")
SECONDS = ("launch", "call")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published speed."""

    row: Row
    source: str
    card: Machine
    demand: Demand

    @property
    def seconds(self) -> float:
        """Return the published seconds of one update."""
        assert self.row.tokens_per_s
        return self.row.batch * self.row.seq * self.demand.micro_batches / self.row.tokens_per_s

    def error(self, efficiency: Efficiency) -> float:
        """Return the logarithm of predicted over published seconds."""
        found = speed(self.demand, self.card, efficiency)
        assert found is not None
        return math.log(found.step_s / self.seconds)


def runs(rows: Iterable[Row], found: Mapping[str, Any]) -> Iterator[Run]:
    """Yield the rows that publish a speed, were traced, and ran on a card of the table."""
    for row in rows:
        demand = found[row.id].get("demand")
        if demand is None or set(UNCOSTED) & set(row.marks):
            continue
        try:
            card = Machine.named(row.gpu, gpus=row.ranks)
        except ValueError:
            continue
        yield Run(row=row, source=row.source.split()[0], card=card, demand=demand_of(row, demand))


def demand_of(row: Row, plain: Mapping[str, Any]) -> Demand:
    """Return the demand that a worker wrote."""
    slower = OLD if "triton" in row.attention else 1.0
    values = dict(plain) | {"work": joined(plain["work"], slower), "traffic": Traffic(*plain["traffic"])}
    return Demand(**values | {"compiled": "compile" in row.kernels})


def joined(work: Iterable[Sequence[Any]], slower: float) -> dict[Kernel, int]:
    """Return the kernels of one kind, phase and dtype as one, and the rest of the launches as one that does nothing."""
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    launches = 0
    for op, phase, dtype, flops, moved, times in work:
        kind = ATTENTION[0] if op in ATTENTION else "product" if flops else "move"
        pair = sums[kind, phase, dtype]
        pair[0] += times * flops * (slower if op in ATTENTION else 1)
        pair[1] += times * moved
        launches += times
    kernels = {Kernel(*key, int(flops), int(moved)): 1 for key, (flops, moved) in sums.items()}
    return kernels | {Kernel("launch", "forward", "float32", 0, 0): launches - len(kernels)}


def calibrated(chosen: Sequence[Run], start: Efficiency = FLAT) -> Efficiency:
    """Return the efficiencies under which the sources are met best, each weighing the root of its runs.

    One number after the other is varied by FACTORS until none helps; what no run tells of stays as it is.
    """
    best, least = start, loss(chosen, start) if chosen else 0.0
    for _ in range(SWEEPS if chosen else 0):
        before = least
        for name in names(chosen):
            for factor in FACTORS:
                tried = varied(best, name, factor)
                value = loss(chosen, tried) if tried else math.inf
                if tried and value < least - 1e-9:
                    best, least = tried, value
        if least == before:
            break
    return best


def names(chosen: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what can be varied: a field of Efficiency, and a family of cards for those that differ by it."""
    kin = sorted({family(run.card.capability) for run in chosen})
    fields = [name for name in Efficiency._fields if name not in BY_FAMILY]
    return [*((name, each) for name in BY_FAMILY for each in kin), *((name, "") for name in fields)]


def varied(efficiency: Efficiency, name: tuple[str, str], factor: float) -> Efficiency | None:
    """Return the efficiencies with one of them larger or smaller; None where a share would be more than MOST."""
    field, kin = name
    value = getattr(efficiency, field)
    new = (value[kin] if kin else value) * factor
    if field not in SECONDS and new > MOST:
        return None
    return efficiency._replace(**{field: {**value, kin: new} if kin else new})


def loss(chosen: Sequence[Run], efficiency: Efficiency) -> float:
    """Return the mean over the sources of their mean absolute error, in logarithms, each by the root of its runs."""
    by_source = defaultdict(list)
    for run in chosen:
        by_source[run.source].append(abs(run.error(efficiency)))
    weights = {source: math.sqrt(len(errors)) for source, errors in by_source.items()}
    total = sum(weights[source] * statistics.fmean(errors) for source, errors in by_source.items())
    return total / sum(weights.values())


def left_out(chosen: Sequence[Run]) -> dict[str, float]:
    """Return the predicted seconds of each run, with efficiencies found without its source."""
    predicted = {}
    for source in {run.source for run in chosen}:
        efficiency = calibrated([run for run in chosen if run.source != source])
        for run in chosen:
            if run.source == source:
                predicted[run.row.id] = run.seconds * math.exp(run.error(efficiency))
    return predicted


def pairs(chosen: Sequence[Run], predicted: Mapping[str, float]) -> tuple[int, int]:
    """Return how many pairs of plans the prediction puts in the right order, and of how many.

    A pair: two runs of the same source, model and cards whose speeds differ by more than DIFFER.
    """
    right = every = 0
    for a, b in combinations(chosen, 2):
        if (a.source, a.row.model, a.row.gpu, a.row.ranks) != (b.source, b.row.model, b.row.gpu, b.row.ranks):
            continue
        published = rate(a, a.seconds) / rate(b, b.seconds)
        if max(published, 1 / published) <= DIFFER:
            continue
        every += 1
        right += (published > 1) == (rate(a, predicted[a.row.id]) > rate(b, predicted[b.row.id]))
    return right, every


def rate(run: Run, seconds: float) -> float:
    """Return tokens per second of one GPU."""
    return run.row.batch * run.row.seq * run.demand.micro_batches / seconds

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
from hf_efficient.memory.speed import EFFICIENCY, Efficiency, speed
from hf_efficient.memory.traffic import Traffic
from hf_efficient.memory.work import Kernel

DIFFER = 1.05
"""Two plans are a pair where one is at least so much faster."""
UNCOSTED = ("fp8", "hand-written CUDA", "rows are shorter than seq")
"""Marks of rows whose kernels, or whose tokens, are not those of the trace."""
SWEEPS = 3
FACTORS = (0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.4)


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
    kernels = {Kernel(*kernel): times for *kernel, times in plain["work"]}
    values = dict(plain) | {"work": kernels, "traffic": Traffic(*plain["traffic"])}
    return Demand(**values | {"compiled": "compile" in row.kernels})


def calibrated(chosen: Sequence[Run], start: Efficiency = EFFICIENCY) -> Efficiency:
    """Return the efficiencies under which the sources, each with the same weight, are met best.

    One number after the other is varied by FACTORS, SWEEPS times; what no run tells of stays as it is.
    """
    best, least = start, loss(chosen, start)
    for _ in range(SWEEPS):
        for name in names(chosen):
            for factor in FACTORS:
                tried = varied(best, name, factor)
                value = loss(chosen, tried)
                if value < least - 1e-9:
                    best, least = tried, value
    return best


def names(chosen: Sequence[Run]) -> list[Any]:
    """Return the names of the numbers to vary, major capabilities for products."""
    return [*sorted({run.card.capability[0] for run in chosen}), "attention", "bandwidth", "launch", "link", "hidden",
            "compiled"]  # fmt: skip


def varied(efficiency: Efficiency, name: Any, factor: float) -> Efficiency:
    """Return the efficiencies with one of them larger or smaller; shares stay below one."""
    if isinstance(name, int):
        share = min(0.95, efficiency.product.get(name, efficiency.product[0]) * factor)
        return efficiency._replace(product={**efficiency.product, name: share})
    value = getattr(efficiency, name) * factor
    return efficiency._replace(**{name: value if name == "launch" else min(0.95, value)})


def loss(chosen: Sequence[Run], efficiency: Efficiency) -> float:
    """Return the mean over the sources of their mean absolute error, in logarithms."""
    by_source = defaultdict(list)
    for run in chosen:
        by_source[run.source].append(abs(run.error(efficiency)))
    return statistics.fmean(statistics.fmean(errors) for errors in by_source.values())


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

    A pair: the same source, model, cards and number of tokens... whose speeds differ by more than DIFFER.
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

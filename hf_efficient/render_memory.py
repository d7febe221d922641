"""Estimates of memory as tables: one in full, several side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_efficient.cards import CARDS
from hf_efficient.memory.context import DRIVER_GIB
from hf_efficient.memory.results import PARTS, Estimate
from hf_efficient.memory.words import Unit, amount, apart, digits, rate, unit, verdict, would_do

if TYPE_CHECKING:
    from hf_efficient.memory.stages import Sharding, Stage
from hf_efficient.wording import listed

BAR = 40
"""Letters of the longest bar."""
TOTALS = ("allocated", "reserved", "on the card")
TIMES = {"moving": "moving data", "waiting": "waiting for Python"}
"""Parts of a step's time whose names say too little."""


def data(estimates: Sequence[Estimate], sharding: Sharding | None = None) -> dict[str, Any]:
    """Return one estimate as JSON has it, with each `sharding` where that was asked; several under `estimates`."""
    rows = [estimate.row() for estimate in estimates]
    if sharding is not None:
        return rows[0] | {"sharding": sharding.row()}
    return rows[0] if len(rows) == 1 else {"estimates": rows}


def tables(estimates: Sequence[Estimate], sharding: Sharding | None = None) -> None:
    """Print one estimate in full, with a row per sharding where that was asked; several in a row each."""
    if len(estimates) == 1:
        _alone(estimates[0], sharding)
    else:
        _side_by_side(estimates)


def _alone(estimate: Estimate, sharding: Sharding | None) -> None:
    print(f"{estimate.model}, {apart([estimate]).shared.partition(', ')[2]}")
    print(f"{_parameters(estimate)}\n")
    own = unit(estimate.allocated_gib)
    print(f"{'':<12}{own.name:>8}")
    for part in PARTS:
        gib = estimate.breakdown.get(part, 0.0)
        print(f"{part:<12}{own.cell(gib):>8}  {_bar(gib / estimate.allocated_gib)}".rstrip())
    print(f"{'allocated':<12}{own.cell(estimate.allocated_gib):>8}  peak: {estimate.peak_at}")
    for name, value, what in (
        ("reserved", estimate.held_gib, "with what PyTorch's allocator keeps"),
        ("needed", estimate.taken_gib if estimate.fits is not None else None, _beside(estimate)),
        ("nvidia-smi", estimate.device_gib, f"shows up to that: with some drivers {DRIVER_GIB} GiB of their own"),
    ):
        if value is not None:
            print(f"{name:<12}{own.cell(value):>8}  {what}")
    print()
    fits = ", ".join(filter(None, [_card(estimate), verdict(estimate) or would_do(estimate)]))
    _sentences("", [fits, *_speed(estimate), _host(estimate), _moments(estimate), *_changes(estimate)])
    if sharding is not None:
        _shardings(sharding)
    _sentences("", _assumed([estimate])[0])


def _beside(estimate: Estimate) -> str:
    """Say what of the card is outside the allocator."""
    return "with " + listed([f"{name} {amount(gib)}" for name, gib in estimate.beside_gib.items()])


def _side_by_side(estimates: Sequence[Estimate]) -> None:
    names = apart(estimates)
    print(f"{names.shared}\n")
    for number, (estimate, name) in enumerate(zip(estimates, names.own, strict=True), 1):
        print(f"{number}: {': '.join(filter(None, [name, verdict(estimate) or would_do(estimate)]))}")
    print()
    own = unit(max(estimate.allocated_gib for estimate in estimates))
    _parts(estimates, own)
    print()
    _totals(estimates, own)
    print()
    for lines in ([[_card(e), f"peak: {e.peak_at}", _host(e), *_changes(e)] for e in estimates], _assumed(estimates)):
        for label, told in _labelled(lines):
            _sentences(label, told)


def _parts(estimates: Sequence[Estimate], own: Unit) -> None:
    """Print a row per estimate, 79 letters wide at the most."""
    rows = [[own.cell(estimate.breakdown.get(part, 0.0)) for part in PARTS] for estimate in estimates]
    _columns(own.name, PARTS, {str(number): row for number, row in enumerate(rows, 1)})


def _totals(estimates: Sequence[Estimate], own: Unit) -> None:
    """Print a row per estimate: what it takes in all and, where a card is named, how fast it is on one GPU."""
    on_card = any(estimate.device_gib is not None for estimate in estimates)
    timed = any(estimate.step_s is not None for estimate in estimates)
    rows = [
        [*_memory_cells(e, own)[: 3 if on_card else 2], *(_speed_cells(e, e.tokens_per_s) if timed else [])]
        for e in estimates
    ]
    head = [*TOTALS[: 3 if on_card else 2], *(["s/step", rate(estimates[0])] if timed else [])]
    _columns(own.name, head, {str(number): row for number, row in enumerate(rows, 1)})


def _shardings(sharding: Sharding) -> None:
    """Print a row per sharding, 79 letters wide at the most but for reasons, and which is the least that fits."""
    asked = sharding.asked
    own, on_card = unit(asked.allocated_gib), asked.fits is not None
    head = [*TOTALS, "fits", "s/step", rate(asked)] if on_card else [*TOTALS[:2], "fits on"]
    rows = {stage.plan: _stage_cells(stage, own, on_card) for stage in sharding.stages}
    print(f"\nof each of {asked.gpus} GPUs, by sharding{f' ({rate(asked)} of all)' if on_card else ''}:")
    _columns(own.name, head, rows)
    _sentences("", _least(sharding))
    print()


def _stage_cells(stage: Stage, own: Unit, on_card: bool) -> list[str]:
    estimate = stage.estimate
    if estimate is None:
        return [f"  {stage.why}"]
    cells = _memory_cells(estimate, own)
    if not on_card:
        return [*cells[:2], next((card.gpu for card in estimate.cards if card.fits), "none")]
    return [*cells, "barely" if estimate.tight else "yes" if stage.fits else "no",
            *_speed_cells(estimate, stage.tokens_per_s)]  # fmt: skip


def _least(sharding: Sharding) -> list[str]:
    """Say which is the least sharding that fits, what it costs, and what is assumed of it beside the plan's own."""
    least, asked = sharding.least, sharding.asked
    if asked.fits is None:
        return []
    if least is None or least.estimate is None:
        return [f"no sharding fits on {asked.gpus} x {asked.gpu}"]
    base = next(stage.plan for stage in sharding.stages if stage.estimate)
    told = [f"least sharding that fits: {least.plan}", "but only just" if least.estimate.tight else ""]
    told += [_cost(least.costs, base) if least.plan != base and least.costs is not None else ""]
    fastest = max((s for s in sharding.stages if s.fits), key=lambda stage: stage.tokens_per_s or 0.0)
    told += [f"the fastest that fits: {fastest.plan}" if fastest.plan != least.plan and fastest.tokens_per_s else ""]
    told += [_host(least.estimate) if least.estimate.host_gib != asked.host_gib else ""]
    more = [sentence for sentence in least.estimate.assumptions if sentence not in asked.assumptions]
    return [", ".join(filter(None, told)), *(f"{least.plan}: assumed: {sentence}" for sentence in more)]


def _cost(costs: float, base: str) -> str:
    lost = round(100 * costs)
    if lost == 0:
        return "costs no speed"
    return f"costs {lost} % of the speed of {base}" if lost > 0 else f"{-lost} % faster than {base}"


def _memory_cells(estimate: Estimate, own: Unit) -> list[str]:
    values = (estimate.allocated_gib, estimate.held_gib, estimate.device_gib)
    return ["-" if value is None else own.cell(value) for value in values]


def _speed_cells(estimate: Estimate, tokens_per_s: float | None) -> list[str]:
    return ["-" if value is None else digits(value) for value in (estimate.step_s, tokens_per_s)]


def _columns(corner: str, head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """Print cells below their column's name, right-aligned; a row of one cell is a sentence."""
    first = max(4, *(len(name) for name in rows))
    inner = [row for row in rows.values() if len(row) > 1]
    wide = [max([len(name), *(len(row[place]) for row in inner)]) + 2 for place, name in enumerate(head)]
    for name, row in ((corner, head), *rows.items()):
        cells = (cell.rjust(width) for cell, width in zip(row, wide, strict=True)) if len(row) > 1 else row
        print(f"{name:<{first}}{''.join(cells)}")


def _labelled(texts: Sequence[Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Return what all say without a label, then what each says alone with its number."""
    same = [line for line in texts[0] if all(line in others for others in texts)]
    own = [(f"{number}: ", [line for line in lines if line not in same]) for number, lines in enumerate(texts, 1)]
    return [("", same), *own]


def _card(estimate: Estimate) -> str:
    """Say what of the card's memory can be used, and of how much where the table knows it."""
    if estimate.capacity_gib is None:
        return ""
    total = next((card.memory_mib / 1024 for card in CARDS if card.name == estimate.gpu), 0.0)
    of = f" usable of {total:.3g}" if total - estimate.capacity_gib > 0.05 else ""
    return f"{estimate.gpu or 'the card'}: {amount(estimate.capacity_gib)}{of}"


def _speed(estimate: Estimate) -> list[str]:
    """Say how long a step takes, and what its time goes into."""
    if estimate.step_s is None or estimate.tokens_per_s is None:
        return []
    alone, several = estimate.tokens_per_s, estimate.gpus > 1
    all_gpus = f" per GPU, {digits(alone * estimate.gpus)} over {estimate.gpus} GPUs" if several else ""
    said = [f"a step takes {digits(estimate.step_s)} s: {digits(alone)} {rate(estimate)}{all_gpus}"]
    said += [f"{100 * estimate.mfu:.0f} % of the card's peak (MFU)"] if estimate.mfu is not None else []
    shares = {TIMES.get(name, name): 100 * s / estimate.step_s for name, s in estimate.seconds.items()}
    spent = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items() if share >= 0.5)
    return [", ".join(said), f"its time goes into {spent}" if spent else ""]


def _host(estimate: Estimate) -> str:
    return f"host memory: {amount(estimate.host_gib)} per GPU" if estimate.host_gib else ""


def _moments(estimate: Estimate) -> str:
    names = {"resume": "going on from a checkpoint"}
    moments = ", ".join(f"{names.get(phase, phase)} {amount(gib)}" for phase, gib in estimate.moments.items())
    return f"highest of each phase: {moments}" if moments else ""


def _changes(estimate: Estimate) -> list[str]:
    return [f"to make it fit: {change}" for change in estimate.changes]


def _assumed(estimates: Sequence[Estimate]) -> list[list[str]]:
    return [[f"assumed: {sentence}" for sentence in estimate.assumptions] for estimate in estimates]


def _parameters(estimate: Estimate) -> str:
    trained = estimate.trainable_params
    share = "all trained" if trained == estimate.params else f"{_count(trained)} trained"
    return f"{_count(estimate.params)} parameters, {share}"


def _count(number: int) -> str:
    for name, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return str(number)


def _bar(share: float) -> str:
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return block * round(share * BAR)


def _sentences(label: str, lines: Sequence[str]) -> None:
    for line in filter(None, lines):
        print(f"{label}{line}")

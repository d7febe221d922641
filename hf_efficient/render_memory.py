"""Estimates of memory as tables: one in full, several side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hf_efficient.cards import CARDS
from hf_efficient.memory.results import PARTS, Estimate
from hf_efficient.memory.words import Unit, amount, apart, needed, unit, verdict, would_do

BAR = 40
"""Letters of the longest bar."""


def data(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return one estimate as JSON has it, several as a list under `estimates`."""
    rows = [estimate.row() for estimate in estimates]
    return rows[0] if len(rows) == 1 else {"estimates": rows}


def tables(estimates: Sequence[Estimate]) -> None:
    """Print one estimate in full, several in a row each with what differs."""
    if len(estimates) == 1:
        _alone(estimates[0])
    else:
        _side_by_side(estimates)


def _alone(estimate: Estimate) -> None:
    print(f"{estimate.model}, {apart([estimate]).shared.partition(', ')[2]}")
    print(f"{_parameters(estimate)}\n")
    own = unit(estimate.allocated_gib)
    print(f"{'':<12}{own.name:>8}")
    for part in PARTS:
        gib = estimate.breakdown.get(part, 0.0)
        print(f"{part:<12}{own.cell(gib):>8}  {_bar(gib / estimate.allocated_gib)}".rstrip())
    print(f"{'allocated':<12}{own.cell(estimate.allocated_gib):>8}  peak: {estimate.peak_at}")
    for name, value, what in (
        ("reserved", estimate.reserved_gib, "with what PyTorch's allocator keeps"),
        ("on the card", estimate.device_gib, "as nvidia-smi shows it"),
        ("needed", None if estimate.device_gib else needed(estimate), "on the card, with what PyTorch and CUDA keep"),
    ):
        if value and value > estimate.allocated_gib:
            print(f"{name:<12}{own.cell(value):>8}  {what}")
    print()
    fits = ", ".join(filter(None, [_card(estimate), verdict(estimate) or would_do(estimate)]))
    _sentences("", [fits, _host(estimate), _moments(estimate), *_changes(estimate), *_assumed([estimate])[0]])


def _side_by_side(estimates: Sequence[Estimate]) -> None:
    names = apart(estimates)
    print(f"{names.shared}\n")
    for number, (estimate, name) in enumerate(zip(estimates, names.own, strict=True), 1):
        print(f"{number}: {': '.join(filter(None, [name, verdict(estimate) or would_do(estimate)]))}")
    print()
    _parts(estimates, unit(max(estimate.allocated_gib for estimate in estimates)))
    print()
    for lines in ([[_card(e), f"peak: {e.peak_at}", _host(e), *_changes(e)] for e in estimates], _assumed(estimates)):
        for label, told in _labelled(lines):
            _sentences(label, told)


def _parts(estimates: Sequence[Estimate], own: Unit) -> None:
    """Print a row per estimate, 79 letters wide at the most."""
    columns = [*PARTS, "allocated"]
    print(own.name.ljust(4) + "".join(column.rjust(len(column) + 2) for column in columns))
    for number, estimate in enumerate(estimates, 1):
        values = [*(estimate.breakdown.get(part, 0.0) for part in PARTS), estimate.allocated_gib]
        cells = (own.cell(v).rjust(len(column) + 2) for column, v in zip(columns, values, strict=True))
        print(f"{number:<4}{''.join(cells)}")


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


def _host(estimate: Estimate) -> str:
    return f"host memory: {amount(estimate.host_gib)} per GPU" if estimate.host_gib else ""


def _moments(estimate: Estimate) -> str:
    moments = ", ".join(f"{phase} {amount(gib)}" for phase, gib in estimate.moments.items())
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

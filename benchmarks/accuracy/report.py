"""What is printed of the rows: each group against the figure that it publishes, and what of its limits is missed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import rows as table_of
import speeds
import summary
from rows import Row
from speeds import Run

FIGURES = {"reserved": "reserved", "device": "device", "nvidia-smi": "device"}
"""Group -> which of the product's figures is held against the published one; of others `traced`, the allocated."""


def figure(row: Row, result: Mapping[str, Any]) -> float | None:
    """Return the product's figure for what the row publishes."""
    value: float | None = result.get(FIGURES.get(row.group, "traced"))
    return value


def error(row: Row, result: Mapping[str, Any]) -> float | None:
    """Return the signed error in percent; None where the row publishes no figure, or has none."""
    value = figure(row, result)
    return summary.error(row.published, value) if row.published and value is not None and row.group != "fit" else None


def line(row: Row, result: Mapping[str, Any], other: Mapping[str, Any] | None) -> str:
    """Return what is printed of a row."""
    start = f"{row.id} {row.model:<18} {row.setting:<66}"
    if "error" in result:
        return f"{start} OUT: {result['error']}"
    if row.group == "fit":
        ended = "ran" if row.ran else "out of memory"
        return f"{start} {ended:<13} traced {result['traced']:7.2f} GiB, {verdict(row, result)}"
    said = [*row.marks]
    if other is not None and "traced" in other and row.published:
        said.append(f"with {table_of.SILENT}: {summary.error(row.published, other['traced']):+.2f} %")
    signed, value = error(row, result), figure(row, result)
    words = f"{signed:+7.2f} %" if signed is not None else "     no figure"
    return f"{start} {row.published or 0:8.3f} {value or 0:8.3f} {words}  {'; '.join(said)}"


def verdict(row: Row, result: Mapping[str, Any]) -> str:
    """Return whether the product says that a row fits on its card, and whether it did."""
    if result.get("fits") is None:
        return f"no card: {row.gpu}"
    said = "fits" if result["fits"] else "does not fit"
    return f"{said} on {row.gpu}: {'right' if result['fits'] == row.ran else 'WRONG'}"


def report(group: str, its: Sequence[Row], found: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    """Print a group; return its figures."""
    print(f"\n{group}: {len(its)} rows")
    for row in its:
        result = found[row.id]
        print(line(row, result, found.get(f"{row.id} {table_of.SILENT}")))
        if verbose:
            kept = ("peak_at", "moments", "breakdown", "seconds")
            print("      ", result.get("where") or {key: result.get(key) for key in kept})
    out = sum("error" in found[row.id] for row in its)
    errors = [e for row in its if (e := error(row, found[row.id])) is not None]
    figures: dict[str, Any] = {"rows": len(its), "in": len(its) - out, "out": out, **summary.of(errors)}
    if errors:
        print(f"  in {len(its) - out}, out {out}: {summary.words(figures)}")
    return said(group, figures)


def fit(its: Sequence[Row], found: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    """Print the rows of the group `fit`, and those of every other group that ran and are said not to fit."""
    figures = report("fit", [row for row in its if row.group == "fit"], found, verbose=verbose)
    known = [row for row in its if found[row.id].get("fits") is not None and row.group not in ("nvidia-smi", "speed")]
    full = [row for row in known if row.ran is False]
    ran = [row for row in known if row.ran is not False]
    wrong = [row for row in ran if not found[row.id]["fits"]]
    for row in wrong:
        if row.group != "fit":
            print(line(row, found[row.id], None), f"WRONG: it ran on {row.gpu}")
    figures |= {
        "full": len(full),
        "full_right": sum(not found[row.id]["fits"] for row in full),
        "ran": len(ran),
        "ran_right": len(ran) - len(wrong),
    }
    print(f"  out of memory: {figures['full_right']} of {len(full)} said not to fit")
    print(f"  ran, of all groups: {figures['ran_right']} of {len(ran)} said to fit")
    return said("fit", figures)


def speed(rows: Sequence[Row], found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Print every published speed beside the one predicted without its source; return figures and seconds."""
    chosen = [*speeds.runs(rows, found)]
    if not chosen:
        return {"missed": []}, {}
    predicted = speeds.left_out(chosen)
    print(f"\nspeed: {len(chosen)} rows, each predicted with efficiencies found without its source")
    for run in chosen:
        seconds = predicted[run.row.id]
        print(
            f"{run.row.id} {run.row.model:<18} {run.row.setting:<66} {run.row.gpu:<12} {run.seconds:8.3f} s "
            f"{seconds:8.3f} s {100 * (seconds / run.seconds - 1):+7.1f} %  {'; '.join(run.row.marks)}"
        )
    for source in sorted({run.source for run in chosen}):
        print(f"  {source:<45} {summary.words(summary.of(_errors(chosen, predicted, source)))}")
    right, every = speeds.pairs(chosen, predicted)
    its = [run for run in chosen if run.row.group == "speed"]
    figures = {
        "rows": len(chosen),
        **summary.of(_errors(chosen, predicted)),
        "group_median": statistics.median(abs(e) for e in _errors(its, predicted)) if its else None,
        "efficiency": speeds.calibrated(chosen)._asdict(),
        "pairs": every,
        "pairs_right": right,
    }
    print(f"  all: {summary.words(figures)}; rows of the group alone: median {figures['group_median'] or 0:.1f} %")
    print(f"  pairs of plans that differ by more than {speeds.DIFFER - 1:.0%}: {right} of {every} in the right order")
    times = {run.row.id: {"published_s": run.seconds, "predicted_s": predicted[run.row.id]} for run in chosen}
    return said("speed", figures), times


def _errors(chosen: Sequence[Run], predicted: Mapping[str, float], source: str = "") -> list[float]:
    return [summary.error(run.seconds, predicted[run.row.id]) for run in chosen if source in ("", run.source)]


def said(group: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Print and return what of a group's limits is missed."""
    figures["missed"] = summary.missed(group, figures)
    for sentence in figures["missed"]:
        print("  missed:", sentence)
    return figures

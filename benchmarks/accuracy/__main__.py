"""Hold the memory estimate against published measurements, each with the releases it was measured with.

    python benchmarks/accuracy [--rows FILE] [--group NAME] [--id F0364,...] [--json FILE]

Prints every row (id, model, setting, published and traced GiB, signed error), and median, 90th percentile and worst of
each group. Exit code 1 when a group misses its limit.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import releases
import rows as table_of
import summary
from rows import Row

WORKERS = 2
"""Processes at a time, each on one core."""


def results(chosen: list[Row], table: Path) -> dict[str, dict[str, Any]]:
    """Return the result of each row, traced by one process for each release."""
    by_release: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in chosen:
        by_release[row.transformers, row.peft].append(row)
    parts = [
        (its[start::WORKERS], table, releases.environment(releases.folder_of(release, peft)))
        for (release, peft), its in by_release.items()
        for start in range(WORKERS)
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        done = pool.map(lambda part: _by_one(*part), [part for part in parts if part[0]])
    return {result["id"]: result for its in done for result in its}


def _by_one(its: list[Row], table: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return the results of rows of one release, by one process."""
    lines = "".join(json.dumps(table_of.plain(row)) + "\n" for row in its)
    worker = [sys.executable, str(Path(__file__).with_name("worker.py")), str(table)]
    one = environment | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(worker, input=lines, capture_output=True, text=True, env=one, check=False)
    found = {row.id: {"id": row.id, "error": done.stderr.strip()[-300:] or "no answer"} for row in its}
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            result = json.loads(line[1:])
            found[result["id"]] = result
    return list(found.values())


def line(row: Row, result: dict[str, Any], other: dict[str, Any] | None) -> str:
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
    signed = f"{summary.error(row.published, result['traced']):+7.2f} %" if row.published else "     no figure"
    return f"{start} {row.published or 0:8.3f} {result['traced']:8.3f} {signed}  {'; '.join(said)}"


def verdict(row: Row, result: dict[str, Any]) -> str:
    """Return whether the product says that a row fits on its card, and whether it did."""
    if result.get("fits") is None:
        return f"no card: {row.gpu}"
    said = "fits" if result["fits"] else "does not fit"
    return f"{said} on {row.gpu}: {'right' if result['fits'] == row.ran else 'WRONG'}"


def report(group: str, its: list[Row], found: dict[str, Any], *, verbose: bool) -> dict[str, Any]:
    """Print a group; return its figures."""
    beside = "" if group in table_of.JUDGED else " (for information: what is allocated, held to no limit)"
    print(f"\n{group}: {len(its)} rows{beside}")
    errors, out, right = [], 0, []
    for row in its:
        result = found[row.id]
        print(line(row, result, found.get(f"{row.id} {table_of.SILENT}")))
        out += "error" in result
        if verbose:
            print(
                "      ",
                result.get("where") or {key: result.get(key) for key in ("peak_at", "moments", "breakdown", "seconds")},
            )
        if "traced" in result and row.published and group != "fit":
            errors.append(summary.error(row.published, result["traced"]))
        if row.group == "fit" and result.get("fits") is not None:
            right.append(result["fits"] == row.ran)
    figures: dict[str, Any] = {"rows": len(its), "in": len(its) - out, "out": out, **summary.of(errors)}
    if errors:
        print(
            f"  in {len(its) - out}, out {out}: median {figures['median']:.2f} %, 90th {figures['p90']:.2f} %, worst "
            f"{figures['worst']:.2f} %, signed median {figures['signed_median']:+.2f} %"
        )
    if right:
        figures["labels_right"] = sum(right)
        print(f"  in {len(its) - out}, out {out}: {sum(right)} of {len(right)} labels right")
    figures["missed"] = summary.missed(group, figures)
    for sentence in figures["missed"]:
        print("  missed:", sentence)
    return figures


def options() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=table_of.TABLE)
    parser.add_argument("--group", help="comma list; all without it")
    parser.add_argument("--id", help="comma list of rows, those of speed too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-v", action="store_true", help="print where the peak is, and where a row failed")
    return parser.parse_args()


def main() -> int:
    """Run it."""
    asked = options()
    table = asked.rows.resolve()
    every = table_of.read(table)
    groups = asked.group.split(",") if asked.group else [*table_of.JUDGED, *table_of.SHOWN]
    ids = asked.id.split(",") if asked.id else None
    chosen = [row for row in every if (row.id in ids if ids else row.group in groups)]
    traced = [row for row in chosen if row.group != "speed" or ids]
    again = [
        replace(row, id=f"{row.id} {table_of.SILENT}", transformers=table_of.SILENT, peft=table_of.PEFT)
        for row in traced
        if row.silent
    ]
    found = results([*traced, *again], table)
    made: dict[str, Any] = {}
    for group in (
        [g for g in groups if g != "speed" and any(row.group == g for row in traced)]
        if not ids
        else {r.group: 0 for r in traced}
    ):
        made[group] = report(group, [row for row in traced if row.group == group], found, verbose=asked.v)
    times = len(chosen) - len(traced)
    if times:
        print(f"\nspeed: {times} rows publish times and no memory: none is held here")
    if asked.json:
        asked.json.write_text(json.dumps(document(made, chosen, found), indent=1) + "\n")
    return int(any(figures["missed"] for group, figures in made.items() if group in table_of.JUDGED))


def document(groups: dict[str, Any], chosen: list[Row], found: dict[str, Any]) -> dict[str, Any]:
    """Return the results with what made them."""
    from importlib.metadata import version

    versions = {name: version(name) for name in ("torch", "accelerate", "bitsandbytes", "torchao")}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = []
    for row in chosen:
        result = found.get(row.id, {})
        kept = {key: result[key] for key in ("with", "traced", "peak_at", "fits", "error") if key in result}
        signed = summary.error(row.published, result["traced"]) if row.published and "traced" in result else None
        rows.append(
            {
                "id": row.id,
                "group": row.group,
                "model": row.model,
                "setting": row.setting,
                "published": row.published,
                "error_percent": signed,
                "marks": row.marks,
                **kept,
            }
        )
    made = {
        "command": "make accuracy",
        "date": str(date.today()),
        "machine": platform.platform(),
        "python": platform.python_version(),
    }
    return {**made, "versions": versions, "commit": commit, "groups": groups, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())

"""Hold the memory estimate against published measurements, each with the releases it was measured with.

    python benchmarks/accuracy [--rows FILE] [--group NAME] [--id F0364,...] [--json FILE]

Prints every row (id, model, setting, published and predicted figure, signed error), and median, 90th percentile and
worst of each group. Exit code 1 when a group misses its limit.
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
import report
import rows as table_of
from rows import Row

GROUPS = [*table_of.JUDGED, *table_of.SHOWN]
KEPT = ("with", "traced", "reserved", "device", "peak_at", "fits", "error")
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


def options() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=table_of.TABLE)
    parser.add_argument("--group", help="comma list; all without it")
    parser.add_argument("--id", help="comma list of rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-v", action="store_true", help="print where the peak is, and where a row failed")
    return parser.parse_args()


def main() -> int:
    """Run it."""
    asked = options()
    table = asked.rows.resolve()
    every = table_of.read(table)
    groups = asked.group.split(",") if asked.group else GROUPS
    ids = asked.id.split(",") if asked.id else None
    chosen = [row for row in every if (row.id in ids if ids else row.group in groups)]
    again = [
        replace(row, id=f"{row.id} {table_of.SILENT}", transformers=table_of.SILENT, peft=table_of.PEFT)
        for row in chosen
        if row.silent
    ]
    found = results([*chosen, *again], table)
    chosen += [replace(row, group="nvidia-smi", published=row.nvidia_smi) for row in chosen if seen(row)]
    made = {group: its for group in [*GROUPS, "nvidia-smi"] if (its := [row for row in chosen if row.group == group])}
    figures = {
        group: report.report(group, its, found, verbose=asked.v)
        for group, its in made.items()
        if group not in ("fit", "speed")
    }
    figures["fit"] = report.fit(chosen, found, verbose=asked.v)
    predicted: dict[str, Any] = {}
    if any("demand" in result for result in found.values()):
        figures["speed"], predicted = report.speed([row for row in chosen if row.group != "nvidia-smi"], found)
    if asked.json:
        asked.json.write_text(json.dumps(document(figures, chosen, found, predicted), indent=1) + "\n")
    return int(any(each["missed"] for each in figures.values()))


def seen(row: Row) -> bool:
    """Say whether nvidia-smi is published of a run whose allocated bytes are known."""
    return row.group == "hf-1gpu-allocated" and row.nvidia_smi is not None


def document(
    groups: dict[str, Any], chosen: list[Row], found: dict[str, Any], predicted: dict[str, Any]
) -> dict[str, Any]:
    """Return the results with what made them."""
    from importlib.metadata import version

    versions = {name: version(name) for name in ("torch", "accelerate", "bitsandbytes", "torchao")}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = []
    for row in chosen:
        result = found.get(row.id, {})
        kept = {key: result[key] for key in KEPT if key in result}
        told = {name: getattr(row, name) for name in ("id", "group", "model", "setting", "published", "gpu", "marks")}
        told |= {"ran": row.ran} if row.group == "fit" else {}
        rows.append({**told, "error_percent": report.error(row, result), **kept, **predicted.get(row.id, {})})
    made = {
        "command": "make accuracy",
        "date": str(date.today()),
        "machine": platform.platform(),
        "python": platform.python_version(),
    }
    return {**made, "versions": versions, "commit": commit, "groups": groups, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())

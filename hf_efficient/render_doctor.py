"""The doctor's report in words: findings file by file, then what each knob ends up as."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from hf_efficient.render import console, table

NOWHERE = "(no single file)"


def report(data: Mapping[str, Any]) -> None:
    """Print findings grouped by file, the effective configuration of each run, and what was silenced."""
    findings = sorted(data["findings"], key=lambda row: _file(row["where"]) or "~")
    for file, of_file in groupby(findings, key=lambda row: _file(row["where"])):
        _group(file or NOWHERE, list(of_file))
    for row in data.get("silenced", ()):
        print(f"silenced: {row['where']} {row['code']}: {row['reason']}")
    runs = data.get("runs") or [{"files": [], "effective": data["effective"]}]
    for run in runs:
        if run["effective"]:
            rows = [{"key": key} | knob for key, knob in run["effective"].items()]
            shown = [row | {"value": "unknown" if row["value"] is None else row["value"]} for row in rows]
            table(f"effective ({', '.join(run['files'])})" if run["files"] else "effective", shown)
    print(_summary(data["findings"]))


def _group(file: str, rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    out.print(file, style="bold")
    for row in rows:
        line = row["where"].removeprefix(file).lstrip(":")
        print(f"  {row['level']}{f' line {line}' if line else ''}: {row['what']}. [{row['code']}]")
        print(f"    why: {row['why']}")
        print(f"    fix: {row['fix']}")
    print()


def _file(where: str) -> str:
    """Return the file of a place: what stands before the number of a line."""
    file, colon, line = where.rpartition(":")
    return file if colon and line.isdigit() else where


def _summary(findings: Sequence[Mapping[str, Any]]) -> str:
    counts = {level: sum(row["level"] == level for row in findings) for level in ("error", "warning", "info")}
    if not any(counts.values()):
        return "Nothing was found."
    said = [
        f"{count} {level}{'s' if count > 1 and level != 'info' else ''}" for level, count in counts.items() if count
    ]
    return f"{', '.join(said)}. `hf-efficient explain CODE` says more of each."


def tell_diff(diff: str) -> None:
    """Print a diff on stderr before it is written, so that stdout stays what was asked for."""
    print(diff, file=sys.stderr)


def tell_mended(mended: Sequence[str]) -> None:
    """Say which files were written."""
    for name in mended:
        print(f"mended {name}", file=sys.stderr)
    if not mended:
        print("nothing to mend safely", file=sys.stderr)

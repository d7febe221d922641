"""The doctor's report in words: findings file by file, then what each knob ends up as."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import Any

from hf_efficient.render import console, table, text

NOWHERE = "(no single file)"
NARROW = 120
"""Columns below which the table of knobs becomes a list."""


def report(data: Mapping[str, Any]) -> None:
    """Print findings grouped by file, what was silenced, and the effective configuration of each run."""
    findings = sorted(data["findings"], key=lambda row: _file(row["where"]) or "~")
    for file, of_file in groupby(findings, key=lambda row: _file(row["where"])):
        _group(file or NOWHERE, list(of_file))
    for row in data.get("silenced", ()):
        print(f"silenced: {row['where']} {row['code']}: {row['reason']}")
    if data.get("silenced"):
        print()
    for files, knobs in _alike(data.get("runs") or [{"files": [], "effective": data["effective"]}]):
        _effective(f"effective ({files})" if files else "effective", knobs)
    print(_summary(data["findings"]))


def _alike(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the files and knobs of the runs; runs that end up alike are told once."""
    found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for run in runs:
        if run["effective"]:
            files, _ = found.setdefault(str(run["effective"]), ([], run["effective"]))
            files.append(", ".join(run["files"]))
    return [("; ".join(files), knobs) for files, knobs in found.values()]


def _effective(title: str, knobs: Mapping[str, Any]) -> None:
    """Print a table of knobs, or where the terminal is too narrow for one, a line for each."""
    rows = [{"key": key} | knob for key, knob in knobs.items()]
    rows = [row | {"value": "unknown" if row["value"] is None else row["value"]} for row in rows]
    out = console()
    if out.width >= NARROW:
        table(title, rows)
        return
    out.print(title, style="bold")
    for row in rows:
        origin = ", ".join(filter(None, (row["by"], row["file"])))
        print(wrapped(f"{row['key']}: {text(row['value'])} ({origin})", out.width, "  "))
    print()


def _group(file: str, rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    out.print(file, style="bold")
    for row in rows:
        line = row["where"].removeprefix(file).lstrip(":")
        what = f"{row['level']}{f' line {line}' if line else ''}: {row['what'].rstrip('.')}. [{row['code']}]"
        print(wrapped(what, out.width, "  "))
        print(wrapped(f"why: {row['why']}", out.width, "    "))
        print(wrapped(f"fix: {row['fix']}", out.width, "    "))
    print()


def wrapped(sentence: str, width: int, indent: str) -> str:
    """Return a sentence in lines of that width under one indent; words are not broken, so that keys can be copied."""
    more = f"{indent}  "
    return fill(
        sentence, width, initial_indent=indent, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )


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

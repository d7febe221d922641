"""Data become words and tables: wrapped at a terminal, one line per row in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

NAMES = ("name", "target", "key", "by", "family", "numerics", "capability", "promise", "verdict")
"""Columns whose words are to be copied: a terminal wraps the others."""
OF_CHECKS = ("holds_for", "known_by")
"""What the pages of checks say besides."""
PIPE_WIDTH = 100_000
"""Columns where nobody looks: rows are not to be wrapped or cut."""


def console() -> Console:
    """Return a console on stdout that neither wraps nor colours in a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, soft_wrap=False)


def table(title: str, rows: Sequence[Mapping[str, Any]], *, columns: Sequence[str] = ()) -> None:
    """Print rows under their columns' names; a title that is not empty stands above."""
    from rich.table import Table

    out = console()
    shown = Table(box=None, pad_edge=False, header_style="bold")
    columns = columns or (list(rows[0]) if rows else [])
    for column in columns:
        shown.add_column(column, overflow="fold", no_wrap=column in NAMES)
    for row in rows:
        shown.add_row(*(text(row[column]) for column in columns))
    if title:
        out.print(title, style="bold")
    with out.capture() as captured:
        out.print(shown)
    out.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n\n")


def lists(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print each list under its name."""
    for kind, rows in data.items():
        # what a terminal would break over ten lines for a card; `machine --gpu` and --json have it
        left_out = ("source", "link_gb_s", "host_link_gb_s")
        table(kind, rows, columns=[key for key in (rows[0] if rows else ()) if key not in left_out])


def page(data: Mapping[str, Any]) -> None:
    """Print one page: the text, the facts, and what is set where."""
    out = console()
    out.print(data.get("arguments", data["name"]), style="bold")
    print(f"\n{data['doc']}\n")
    for key in (
        "tricks",
        "family",
        "saves",
        "costs",
        "numerics",
        "heads",
        "needs",
        "unmet",
        "notes",
        "remarks",
        *OF_CHECKS,
    ):
        if data.get(key):
            print(f"{key.replace('_', ' ') + ':':<10} {text(data[key])}")
    if "holds_for" in data:
        return
    print()
    table("", data["settings"], columns=("target", "key", "value", *(("by",) if "tricks" in data else ())))


def plan(data: Mapping[str, Any]) -> None:
    """Print a plan: its settings with their authors, then its sentences."""
    table("", data["settings"])
    if data["effective_batch"]:
        print(f"effective batch: {data['effective_batch']}")
    for key in ("replaced", "notes", "advice"):
        for sentence in data[key]:
            print(sentence)
    sentences("unmet", data["unmet"])


def sentences(label: str, texts: Sequence[str]) -> None:
    """Print a labelled line per sentence."""
    for sentence in texts:
        print(f"{label}: {sentence}")


def verdicts(data: Mapping[str, Any]) -> None:
    """Print a row per verdict, then a line for each that was not kept or not tried."""
    rows = [
        {key: row[key] for key in ("name", "promise", "verdict")}
        | {key.removesuffix("_diff"): distance(row[key]) for key in ("loss_diff", "gradient_diff", "update_diff")}
        | {"why": row["why"]}
        for row in data["verdicts"]
    ]
    table("", rows)
    for row in data["verdicts"]:
        if row["verdict"] == "broken":
            print(f"broken: {row['name']}: {row['why']}. {row['fix'][:1].upper()}{row['fix'][1:]}.")


def tell_verdict(verdict: Any) -> None:
    """Print a verdict on stderr while others are still awaited."""
    print(f"{verdict.name}: {verdict.verdict}", file=sys.stderr)


def distance(value: float | None) -> str:
    """Return a relative distance as a cell shows it; a dash where nothing was compared."""
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def machine(data: Mapping[str, Any]) -> None:
    """Print a machine, a figure a line; packages in one line each."""
    for key, value in data.items():
        if value and key != "packages":
            print(f"{key + ':':<17}{text(value)}")
    for name in ("torch", "transformers", "accelerate", "datasets", "peft", "trl", "bitsandbytes", "deepspeed"):
        print(f"{name + ':':<17}{data['packages'].get(name, 'not installed')}")


def text(value: Any) -> str:
    """Return a value as a cell shows it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ("; " if any(" " in str(item) for item in value) else ", ").join(map(text, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)

"""The measured matrix of promises as a page: a row per trick, a column per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Cell = Mapping[str, Any]
SHORT = {"not exercised here": "·", "does not apply": "n/a", "broken": "**broken**"}
"""Verdicts as a cell shows them, where another word is shorter."""


def page(measured: Mapping[str, Any]) -> str:
    """Return the page of `docs/measured/promises.json`."""
    cells = measured["cells"]
    heads = list(dict.fromkeys(cell["head"] for cell in cells))
    names = list(dict.fromkeys(cell["name"] for cell in cells))
    found = {(cell["name"], cell["head"]): cell for cell in cells}
    rows = [["trick", "promise", *heads], ["---"] * (len(heads) + 2)]
    for name in names:
        promise = found[name, heads[0]]["promise"]
        rows.append([f"`{name}`", promise, *(_cell(found[name, head]) for head in heads)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([*_about(measured), table, *_farthest(cells), *_broken(cells), *_silent(cells)]) + "\n"


def _about(measured: Mapping[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in measured["packages"].items())
    counts: dict[str, int] = {}
    for cell in measured["cells"]:
        counts[cell["verdict"]] = counts.get(cell["verdict"], 0) + 1
    total = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return [
        "<!-- Made by `make generate` from docs/measured/promises.json. -->\n# Promises, measured",
        "Each trick on a tiny model of each head, a few updates with it and without, against torch alone: "
        "`hf-efficient verify --model M NAME...` does the same on yours. `exact`: gradients (an optimizer's update) "
        "within 1e-5 of those without the trick; `close`: within the multiple of the dtype's rounding that the trick "
        "promises; `different`: another training, as promised; `·`: not exercised on this machine; `n/a`: not made for "
        "this head. Sharding was launched on two processes for `llama` and `roberta`.",
        f"`{measured['command']}`, {measured['date']}, commit {measured['commit']}, {measured['machine']}; "
        f"Python {measured['python']}, {packages}. {len(measured['cells'])} cells: {total}.",
    ]


def _cell(cell: Cell) -> str:
    return str(SHORT.get(cell["verdict"], cell["verdict"]))


def _farthest(cells: Sequence[Cell]) -> list[str]:
    """Return, for each trick that promises something about its gradient, the farthest that it was off."""
    worst: dict[str, Cell] = {}
    for cell in cells:
        kept = cell["verdict"] in ("exact", "close") and cell["gradient_diff"] is not None
        if kept and cell["gradient_diff"] >= worst.get(cell["name"], cell)["gradient_diff"]:
            worst[cell["name"]] = cell
    lines = [
        f"| `{name}` | {cell['head']} | {cell['gradient_diff']:.1e} | {cell['why']} |" for name, cell in worst.items()
    ]
    return [
        "## Farthest of what was kept",
        "\n".join(["| trick | head | gradient | in its own units |", "|---|---|---|---|", *lines]),
    ]


def _broken(cells: Sequence[Cell]) -> list[str]:
    lines = [f"- `{cell['name']}` on {cell['head']}: {cell['why']}." for cell in cells if cell["verdict"] == "broken"]
    return ["## Broken", "\n".join(lines)] if lines else []


def _silent(cells: Sequence[Cell]) -> list[str]:
    """Return why cells have no verdict, once per trick and reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        if cell["verdict"] in ("not exercised here", "does not apply"):
            why = cell["why"].split(", and ")[0] if cell["verdict"] == "does not apply" else cell["why"]
            reasons.setdefault((cell["verdict"], cell["name"], why), []).append(cell["head"])
    everywhere = len({cell["head"] for cell in cells})
    lines = [
        f"- `{name}` {verdict}{'' if len(heads) == everywhere else ' (' + ', '.join(heads) + ')'}: {why}"
        for (verdict, name, why), heads in reasons.items()
    ]
    return ["## Without a verdict", "\n".join(lines)] if lines else []

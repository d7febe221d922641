"""Hold every trick to its promise on every head and write the table: `make promises`.

Each head has a process of its own, two at a time; sharding tricks are launched on two processes (sharded.py).
`--heads llama bert` and `--tricks bf16 packing` do a part of it and print it without writing.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measured_on import measured_on

from hf_efficient.emit.files import write
from hf_efficient.emit.here import training_machine
from hf_efficient.merge import make_plan, parse
from hf_efficient.promises.doors import by_trainer
from hf_efficient.promises.heads import HEADS
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.trial import Trial, samples_wanted
from hf_efficient.promises.verify import verdicts
from hf_efficient.tricks import catalogue

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured" / "promises.json"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed", "torchao")
SILENT = ("not exercised here", "does not apply")
TOGETHER = 2


def head_cells(head: str, tricks: list[str]) -> list[dict[str, Any]]:
    """Return a cell per trick for one head, tried in this process."""
    import transformers.trainer  # noqa: F401  its objects are among those that are not collected again and again

    gc.collect()
    gc.freeze()
    cells, machine = [], training_machine()
    wanted = max(samples_wanted(make_plan(trick)) for trick in tricks)
    with tiny_subject(HEADS[head](), head, wanted) as subject:
        trial = Trial(subject, by_trainer())
        for trick in tricks:
            start = time.perf_counter()
            nothing, verdict = verdicts(make_plan(trick), trial, machine)
            assert nothing.verdict == "exact", nothing
            cells.append({"head": head, **verdict.row(), "seconds": round(time.perf_counter() - start, 1)})
    return cells


def in_a_process(head: str, tricks: list[str]) -> list[dict[str, Any]]:
    """Return the cells of one head from a process of its own, whose failure is an error."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cells.json"
        command = [sys.executable, __file__, "--heads", head, "--tricks", *tricks, "--json", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{head}: {done.stderr[-2000:]}")
        print(f"{head} is done", file=sys.stderr)
        found: list[dict[str, Any]] = json.loads(path.read_text())
        return found


def matrix(heads: list[str], tricks: list[str]) -> dict[str, Any]:
    """Return every cell with what it was measured on."""
    from sharded import run

    start = time.perf_counter()
    with ThreadPoolExecutor(TOGETHER) as pool:
        cells = [cell for found in pool.map(lambda head: in_a_process(head, tricks), heads) for cell in found]
    launched = run()
    for cell in cells:
        cell |= next((row | {"name": cell["name"]} for row in launched if _same(row, cell)), {})
    return {
        **measured_on("make promises", PACKAGES),
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "cells": cells,
        "launched": launched,
    }


def _same(row: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Say whether a launched row is that of a cell, however its trick is spelled."""
    if row["head"] != cell["head"] or row["name"].partition("(")[0] != cell["name"]:
        return False
    return replace(parse(row["name"]), name="") == replace(parse(cell["name"]), name="")


def summary(cells: list[dict[str, Any]]) -> str:
    """Return how many cells have which verdict, and those that have none or are broken."""
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell["verdict"]] = counts.get(cell["verdict"], 0) + 1
    lines = [f"{len(cells)} cells: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))]
    silent = sum(counts.get(verdict, 0) for verdict in SILENT)
    lines.append(f"{silent} of {len(cells)} ({silent / len(cells):.0%}) without a verdict")
    for cell in cells:
        if cell["verdict"] in (*SILENT, "broken"):
            lines.append(f"{cell['verdict']:<19} {cell['name']:<25} {cell['head']:<19} {cell['why']}")
    return "\n".join(lines)


def main() -> int:
    """Run the whole matrix and write it, or a part and print it. A broken promise is a finding, not an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", nargs="+", choices=HEADS)
    parser.add_argument("--tricks", nargs="+")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    tricks = asked.tricks or list(catalogue())
    if asked.json and asked.heads and len(asked.heads) == 1:
        asked.json.write_text(json.dumps(head_cells(asked.heads[0], tricks)))
        return 0
    found = matrix(asked.heads or list(HEADS), tricks)
    print(summary(found["cells"]))
    print(f"{found['minutes']} minutes")
    if not (asked.heads or asked.tricks):
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        write(MEASURED, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Hold traced steps against real ones on this CPU and write the table: `make reality`.

Sixty steps, ten architectures of 20 to 40 million parameters under six plans; tests/reality.py says which.
`real_gib` is what torch's MemTracker sees in the second step, `traced_gib` what the estimate's own path finds without
data, without its imitation of CUDA. `--only llama` does the architectures whose names have that word, and writes none.

Exit code 1 where one of them is more than 2 % off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from measured_on import measured_on  # noqa: E402
from reality import ARCHITECTURES, LIMIT, WAYS, compare  # noqa: E402

from hf_efficient.emit.files import write  # noqa: E402
from hf_efficient.memory.results import GIB  # noqa: E402

MEASURED = ROOT / "docs" / "measured" / "reality.json"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "schedulefree")


def row(architecture: str, way: str) -> dict[str, Any]:
    """Return one step, taken and traced."""
    found = compare(architecture, way)
    return {
        "architecture": architecture,
        "params": found.params,
        "plan": " ".join(WAYS[way].tricks),
        "checkpoint": WAYS[way].stored,
        "batch": "wide" if WAYS[way].wide else "narrow",
        "real_gib": round(found.real / GIB, 5),
        "traced_gib": round(found.peak / GIB, 5),
        "error_percent": round(100 * found.error, 3),
        "where": found.where,
        "peak_at": found.traced.label,
    }


def report(rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Return the rows with what they were measured on."""
    errors = [abs(one["error_percent"]) for one in rows]
    return {
        **measured_on("make reality", PACKAGES),
        "minutes": round(minutes, 1),
        "median_error_percent": round(statistics.median(errors), 3),
        "worst_error_percent": max(errors),
        "rows": rows,
    }


def main() -> int:
    """Compare them all and write the table, or some and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORD", default="")
    only = parser.parse_args().only
    start, rows = time.perf_counter(), []
    for architecture in (name for name in ARCHITECTURES if only in name):
        for way in WAYS:
            rows.append(row(architecture, way))
            one = rows[-1]
            print(
                f"{architecture:<20} {way:<14} {one['real_gib']:.4f} {one['traced_gib']:.4f} "
                f"{one['error_percent']:+.3f} % {one['where']:<12} {one['peak_at']}",
                flush=True,
            )
    found = report(rows, (time.perf_counter() - start) / 60)
    print(f"{len(rows)} steps, error {found['median_error_percent']} % in the median, "
          f"{found['worst_error_percent']} % at worst; {found['minutes']} minutes")  # fmt: skip
    if not only:
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        write(MEASURED, json.dumps(found, indent=1) + "\n")
    return int(found["worst_error_percent"] > 100 * LIMIT)


if __name__ == "__main__":
    sys.exit(main())

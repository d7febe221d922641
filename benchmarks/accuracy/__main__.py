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
from datetime import date
from pathlib import Path
from typing import Any

import releases
import rows as table_of
import summary
from rows import Row


def results(chosen: list[Row], table: Path) -> dict[str, dict[str, Any]]:
    """Return the result of each row, traced by one process for each release."""
    by_release: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in chosen:
        by_release[row.transformers, row.peft].append(row)
    found: dict[str, dict[str, Any]] = {}
    for (release, peft), its in by_release.items():
        environment = releases.environment(releases.folder_of(release, peft))
        lines = "".join(json.dumps(table_of.plain(row)) + "\n" for row in its)
        worker = [sys.executable, str(Path(__file__).with_name("worker.py")), str(table)]
        done = subprocess.run(worker, input=lines, capture_output=True, text=True, env=environment, check=False)
        for line in done.stdout.splitlines():
            if line.startswith("@"):
                result = json.loads(line[1:])
                found[result["id"]] = result
        for row in its:
            found.setdefault(row.id, {"id": row.id, "error": done.stderr.strip()[-300:] or "no answer"})
    return found


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=table_of.TABLE)
    parser.add_argument("--group", help="comma list; all without it")
    parser.add_argument("--id", help="comma list of rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-v", action="store_true", help="print where the peak is")
    asked = parser.parse_args()
    table = asked.rows.resolve()
    every = table_of.read(table)
    groups = asked.group.split(",") if asked.group else list(table_of.JUDGED)
    ids = asked.id.split(",") if asked.id else None
    chosen = [row for row in every if (row.id in ids if ids else row.group in groups)]
    found = results(chosen, table)
    failed = 0
    out: dict[str, Any] = {"date": str(date.today()), "machine": platform.platform(), "groups": {}, "rows": []}
    for group in dict.fromkeys(row.group for row in chosen):
        its = [row for row in chosen if row.group == group]
        errors = []
        print(f"\n{group}: {len(its)} rows")
        for row in its:
            result = found[row.id]
            if "error" in result:
                print(f"{row.id} {row.model:<18} {row.setting:<60} OUT: {result['error']}")
                if asked.v:
                    print(result.get("where", ""))
                continue
            signed = summary.error(row.published, result["traced"]) if row.published else float("nan")
            errors += [signed] if row.published else []
            print(
                f"{row.id} {row.model:<18} {row.setting:<60} {row.published or 0:8.3f} {result['traced']:8.3f} {signed:+7.2f} %"
                f"  {'; '.join(row.marks)}"
            )
            if asked.v:
                print("      ", result["peak_at"], {k: round(v, 2) for k, v in result["moments"].items()},
                      {k: round(v, 2) for k, v in result["breakdown"].items()}, result["seconds"])
            out["rows"].append({"id": row.id, "published": row.published, "error_percent": signed, **result})
        figures = summary.of(errors)
        out["groups"][group] = {"rows": len(its), "in": len(errors), **figures}
        if figures:
            print(f"  in {len(errors)} of {len(its)}: median {figures['median']:.2f} %, 90th {figures['p90']:.2f} %, worst "
                  f"{figures['worst']:.2f} %, signed median {figures['signed_median']:+.2f} %")
        for sentence in summary.missed(group, figures):
            failed = 1
            print("  missed:", sentence)
    if asked.json:
        asked.json.write_text(json.dumps(out, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The public reports of ../shared/cases are answered rightly: what must be found is, what must not be is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hf_efficient import doctor

SHARED = Path(__file__).parents[3] / "shared" / "cases" / "doctor_cases.jsonl"
"""Where the cases come from: beside a checkout, and nowhere else."""
FILE = Path(__file__).parents[1] / "data" / "doctor_cases.jsonl"
CASES = [case for case in map(json.loads, FILE.read_text().splitlines()) if "files" in case or "setup" in case]
CASES = [case for case in CASES if any(key in case for key in ("want", "never", "silent"))]


@pytest.mark.skipif(not SHARED.is_file(), reason="the cases' own folder is not beside this checkout")
def test_the_cases_are_the_shared_ones() -> None:
    """The copy that travels with the tests has not drifted."""
    assert FILE.read_text() == SHARED.read_text()


def _findings(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    files = case.get("files") or {"setup.json": json.dumps(case["setup"])}
    for name, text in files.items():
        (folder / name).write_text(text)
    args = dict(zip(case.get("args", [])[::2], case.get("args", [])[1::2], strict=True))
    report = doctor.examine_files([folder / name for name in files], gpu=args.get("--gpu"))
    return [finding.row() for finding in report.findings]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_public_report_is_answered(case: dict[str, Any], tmp_path: Path) -> None:
    """Each pair of `want` is met by one finding; nothing of `never`; nothing at all where `silent`."""
    found = _findings(case, tmp_path)
    text = {i: " ".join(row[key] for key in ("code", "what", "why", "fix", "where")) for i, row in enumerate(found)}
    for level, pattern in case.get("want", []):
        assert any(
            re.fullmatch(level, row["level"]) and re.search(pattern, text[i], re.IGNORECASE)
            for i, row in enumerate(found)
        ), (level, pattern, found)
    serious = [i for i, row in enumerate(found) if row["level"] != "info"]
    if "never" in case:
        assert not [text[i] for i in serious if re.search(case["never"], text[i], re.IGNORECASE)]
    if case.get("silent"):
        assert not [text[i] for i in serious]

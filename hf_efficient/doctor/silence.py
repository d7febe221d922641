"""Findings that a project has decided to live with, each with its reason."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.checks.check import checks
from hf_efficient.doctor.pages import PAGES
from hf_efficient.finding import Finding, Place, warning
from hf_efficient.wording import nearest

COMMENT = re.compile(r"#\s*hf-efficient:\s*ignore\[([\w\s,-]+)\]\s*:?\s*(.*)")
"""`# hf-efficient: ignore[code] the reason`, on the line of the finding or alone on the line above it."""
TABLE = "tool.hf-efficient.doctor.silence"


def silenced(
    findings: Iterable[Finding], files: Sequence[str], paths: Sequence[Path], texts: Mapping[str, str] | None = None
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """Return the findings that are left, and those that a comment or pyproject.toml silences with a reason.

    A code without a reason silences nothing, and that is a finding of its own.
    """
    everywhere, complaints = _pyproject(paths)
    comments = {file: _comments(file, (texts or {}).get(file)) for file in dict.fromkeys(files)}
    kept: list[Finding] = []
    quiet: list[tuple[Finding, str]] = []
    for finding in findings:
        line = comments.get(finding.where.file, {})
        here = line.get((finding.where.line, finding.code))
        reason = here if here is not None else everywhere.get(finding.code)
        if reason:
            quiet.append((finding, reason))
        else:
            kept.append(finding)
            if here == "":
                complaints.append(_without_reason(finding.code, finding.where))
    complaints += [_unknown(code, Place(file, line)) for file, lines in comments.items() for line, code in lines]
    return [*kept, *filter(None, complaints)], quiet


def _unknown(code: str, at: Place) -> Finding | None:
    """Return the complaint about a code that no finding has: it would silence nothing, and nobody would learn it."""
    known = [*checks(), *PAGES]
    if code in known:
        return None
    close = nearest(code, known)
    return warning(
        f"{code} is to be ignored, and no check has that code",
        why="It silences nothing.",
        fix=f"Did you mean {close}?" if close else "`hf-efficient list checks` names the codes.",
        at=at,
    ).coded("silence-unknown-code")


def _without_reason(code: str, at: Place) -> Finding:
    return warning(
        f"{code} is to be ignored here, and no reason is given",
        why="A silence without a reason outlives its cause, so the finding is still told.",
        fix=f'Write it behind the code: `# hf-efficient: ignore[{code}] REASON`, or in [{TABLE}] {code} = "REASON".',
        at=at,
    ).coded("silence-without-reason")


def _pyproject(paths: Sequence[Path]) -> tuple[dict[str, str], list[Finding | None]]:
    """Return the codes that the nearest pyproject.toml above the first file silences, with their reasons."""
    start = paths[0].absolute() if paths else Path.cwd()
    file = next((folder / "pyproject.toml" for folder in start.parents if (folder / "pyproject.toml").is_file()), None)
    if file is None:
        return {}, []
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}, []  # a broken pyproject.toml is other tools' business
    for key in TABLE.split("."):
        table = table.get(key, {}) if isinstance(table, dict) else {}
    table = table if isinstance(table, dict) else {}
    given = {str(code): reason.strip() for code, reason in table.items() if isinstance(reason, str) and reason.strip()}
    at = Place(str(file))
    return given, [_without_reason(str(c), at) for c in table if c not in given] + [_unknown(c, at) for c in given]


def _comments(file: str, text: str | None = None) -> dict[tuple[int, str], str]:
    """Return line and code to reason, for every comment of a file; one that stands alone counts for the next line."""
    path = Path(file)
    if path.suffix in (".json", "") or not path.is_file() or path.stat().st_size > 5_000_000:
        return {}
    found: dict[tuple[int, str], str] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if text is None else text
    for number, written in enumerate(text.splitlines(), start=1):
        match = COMMENT.search(written)
        if match:
            line = number + 1 if written.lstrip().startswith("#") else number
            found |= {(line, code.strip()): match[2].strip() for code in match[1].split(",")}
    return found

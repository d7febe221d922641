"""Findings as SARIF 2.1.0, which editors and code scanning read."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from hf_efficient.checks.check import checks
from hf_efficient.finding import Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return a SARIF log of one run of the doctor. Source: OASIS SARIF 2.1.0."""
    found = list(findings)
    codes = sorted({finding.code for finding in found})
    driver = {
        "name": "hf-efficient doctor",
        "version": version("hf-efficient"),
        "rules": [_rule(code) for code in codes],
    }
    results = [_result(finding, codes) for finding in found]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(code: str) -> dict[str, Any]:
    check = checks().get(code)
    doc = check.doc if check else code
    return {
        "id": code,
        "shortDescription": {"text": doc.splitlines()[0]},
        "fullDescription": {"text": " ".join(doc.split())},
    }


def _result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    text = f"{finding.what}. {finding.why} {finding.fix}"
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.level],
        "message": {"text": text},
    }
    if finding.where.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": finding.where.file.replace("\\", "/")}}
        if finding.where.line:
            place["region"] = {"startLine": finding.where.line}
        result["locations"] = [{"physicalLocation": place}]
    return result

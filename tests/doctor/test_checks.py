"""Every check finds at least two instances of its mistake and stays silent on a relative without it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.checks.check import checks
from hf_efficient.checks.run import run_checks

HERE = Path(__file__).parent


def _examples() -> dict[str, tuple[list[Any], list[Any]]]:
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for path in sorted((HERE / "examples").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"examples_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert not found.keys() & module.EXAMPLES.keys()
        found |= module.EXAMPLES
    return found


EXAMPLES = _examples()


def _codes(example: Mapping[str, Any], tmp_path: Path) -> set[str]:
    """Return the codes found in a setup document, or in files (`{"files": {name: text}, "gpu": ...}`) and folders."""
    if "files" not in example:
        return {finding.code for finding in run_checks(example)}
    from hf_efficient.doctor import examine_files

    for name, text in example["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = dict.fromkeys(tmp_path / Path(name).parts[0] for name in example["files"])
    report = examine_files(list(given), gpu=example.get("gpu"))
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("code", checks())
def test_every_check_has_examples(code: str) -> None:
    """Two instances at least of the mistake, and one control; the page says something."""
    found, silent = EXAMPLES[code]
    assert len(found) >= 2
    assert len(silent) >= 1
    assert len(checks()[code].doc.splitlines()) >= 2


def test_no_example_is_of_a_check_that_there_is_not() -> None:
    """Examples and checks have the same codes."""
    assert not EXAMPLES.keys() - checks().keys()


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_check_finds_its_mistake(code: str, tmp_path: Path) -> None:
    """Each instance is found under the check's code, and no check breaks on it."""
    for number, example in enumerate(EXAMPLES[code][0]):
        codes = _codes(example, tmp_path / str(number))
        assert code in codes, example
        assert "check-broken" not in codes, example


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_check_is_silent_without_its_mistake(code: str, tmp_path: Path) -> None:
    """Each control is passed without a word of the check, and no check breaks on it."""
    for number, example in enumerate(EXAMPLES[code][1]):
        codes = _codes(example, tmp_path / str(number))
        assert code not in codes, example
        assert "check-broken" not in codes, example

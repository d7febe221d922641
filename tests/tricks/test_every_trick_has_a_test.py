"""A newcomer's trick comes with its test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hf_efficient.tricks import catalogue

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", catalogue())
def test_trick_has_its_test(name: str) -> None:
    """tests/tricks/test_NAME.py exists and holds a test whose docstring is one sentence."""
    path = HERE / f"test_{name}.py"
    assert path.exists(), f"write {path.name}: copy the nearest file here and show the effect through both doors"
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    tests = {node.name: ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")}
    assert tests, f"{path.name} holds no test function"
    wrong = [test for test, doc in tests.items() if not doc.endswith(".") or "\n" in doc or ". " in doc]
    assert not wrong, f"the docstring of {', '.join(wrong)} in {path.name} is not one sentence on one line"


def test_every_file_has_its_trick() -> None:
    """No test file of this folder outlives its trick."""
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} - {"every_trick_has_a_test"}
    assert files == set(catalogue())

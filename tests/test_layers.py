"""The floors of the house, and what a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hf_efficient"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    ("wording", "finding", "gpu", "cards", "machine", "trick", "spelling"),
    ("needs", "renames", "tricks"),
    ("plan", "presets", "merge", "effective_batch"),
    ("emit", "train", "promises", "memory", "shipped", "reading", "checks", "doctor", "describe"),
    ("render", "render_memory", "render_doctor", "options", "deepspeed_page", "generate", "cli_memory", "cli_doctor",
     "cli", "__main__"),
)  # fmt: skip
"""From the ground up; within a floor, a module may import those that stand before it."""
HEIGHT = {name: height for height, name in enumerate(name for floor in FLOORS for name in floor)}
LIGHT = {name for floor in FLOORS[:3] for name in floor}


def _module(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _imports(path: Path) -> list[str]:
    """Return every absolute module name that a file imports, wherever the line stands."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    direct = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return direct + [
        f"{node.module}.{alias.name}" if node.module == "hf_efficient" else str(node.module)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    """A module imports from below its own place only; the package's own `__init__` only names what is loaded later."""
    here = _module(path)
    if here == "__init__":
        return
    for name in _imports(path):
        there = name.split(".")[1] if name.startswith("hf_efficient.") else here
        assert there == here or HEIGHT[there] < HEIGHT[here], f"{here} imports {name} from above"


@pytest.mark.parametrize("path", [p for p in FILES if _module(p) in LIGHT], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_lower_floors_use_the_standard_library_alone(path: Path) -> None:
    """Facts, plans and presets need nothing that has to be installed."""
    foreign = {name.split(".")[0] for name in _imports(path)} - sys.stdlib_module_names - {"hf_efficient"}
    assert not foreign


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_one_idea_of_bearable_size(path: Path) -> None:
    """At most 250 lines a file and 40 a function; every public function has a docstring; a file says what it is."""
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 250
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not any("overload" in ast.unparse(d) for d in node.decorator_list):
            docstring = ast.get_docstring(node) or ""
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring.count("\n")
            assert lines <= 40, f"{path.name}: {node.name} has {lines} lines"
            assert node.name.startswith("_") or docstring or _is_nested(tree, node), (
                f"{path.name}: {node.name} says nothing"
            )


def _is_nested(tree: ast.Module, node: ast.FunctionDef) -> bool:
    return any(
        node is not other and node in ast.walk(other) for other in ast.walk(tree) if isinstance(other, ast.FunctionDef)
    )


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_is_read_in_two_minutes(path: Path) -> None:
    """A recipe has 40 to 90 lines and a docstring with the command that starts it."""
    text = path.read_text()
    assert 40 <= len(text.splitlines()) <= 90
    assert "accelerate launch recipes/" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.launch
@pytest.mark.parametrize("command", [["list"], ["explain", "zero"], ["plan", "fast"], ["emit", "training-args", "lean"],
                                     ["emit", "deepspeed", "zero3"], ["machine"], ["config", "list"]])  # fmt: skip
def test_the_command_line_imports_no_torch(command: list[str]) -> None:
    """Commands about plans start without torch, transformers, accelerate, datasets or deepspeed."""
    code = (
        f"import sys; from hf_efficient.cli import main; code = main({command!r}); print(file=sys.stderr);"
        "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'deepspeed'} & set(sys.modules);"
        "print(*sorted(heavy), file=sys.stderr);"
        "sys.exit(code)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stderr.split("\n")[-2] == ""


def test_every_public_name_is_there() -> None:
    """`from hf_efficient import *` gives what `__all__` promises, each a function or a class."""
    import hf_efficient

    assert all(callable(getattr(hf_efficient, name)) for name in hf_efficient.__all__)
    with pytest.raises(AttributeError):
        _ = hf_efficient.nothing  # type: ignore[attr-defined]

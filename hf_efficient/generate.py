"""`python -m hf_efficient.generate` rebuilds what is made from the code: DeepSpeed and launch files, tables, a stub."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.deepspeed_page import page as deepspeed_page
from hf_efficient.describe import codes, lists
from hf_efficient.emit.deepspeed import deepspeed_json
from hf_efficient.emit.files import write
from hf_efficient.emit.launch_files import launch_files
from hf_efficient.memory.table import groups
from hf_efficient.memory.table import page as memory_page
from hf_efficient.merge import make_plan
from hf_efficient.presets import PRESETS
from hf_efficient.promises.table import page as promises_page
from hf_efficient.tricks import catalogue

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
TABLES = {"tricks": ("name", "saves", "costs", "numerics"), "presets": ("name", "doc", "tricks")}
"""List -> the columns that the README shows of it, between `<!-- NAME -->` and `<!-- /NAME -->`."""


def generated() -> dict[Path, str]:
    """Return every generated file of the repository and what it should hold."""
    plans = {name: make_plan(name) for name in PRESETS}
    files = {
        ROOT / "deepspeed_configs" / f"{name}.json": deepspeed_json(plan)
        for name, plan in plans.items()
        if plan.engine == "DEEPSPEED"
    }
    files |= {ROOT / "recipes" / "launch" / f"{name}.yaml": text for name, text in launch_files().items()}
    readme, stub = ROOT / "README.md", ROOT / "hf_efficient" / "tricks" / "__init__.pyi"
    files[stub] = _stub()
    files[ROOT / "deepspeed_configs" / "README.md"] = deepspeed_page(_measured("sharding"))
    files[ROOT / "docs" / "promises.md"] = promises_page(_measured("promises"))
    files[ROOT / "docs" / "checks.md"] = _checks_page()
    accuracy, reality = _measured("accuracy"), _measured("reality")
    files[ROOT / "docs" / "memory.md"] = memory_page(accuracy, reality)
    text = _between(_with_tables(readme.read_text(encoding="utf-8")), "accuracy", groups(accuracy, reality))
    return files | {readme: text}


def _checks_page() -> str:
    """Return the page of all that the doctor can find, family by family."""
    every = codes()
    found = ["# What the doctor finds\n", f"Made by `make generate` from the {len(every)} checks' own pages.\n"]
    for family in sorted({row["family"] for row in every.values()}):
        found.append(f"## {family.replace('_', ' ')}\n")
        for code, row in every.items():
            if row["family"] == family:
                known = f"; {row['known_by']}" if row["known_by"] else ""
                found.append(f"### {code}\n\n{row['doc']}\n\n*{row['holds_for']}{known}*\n")
    return "\n".join(found)


def _measured(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


def _stub() -> str:
    """Return what tells a type checker that `from hf_efficient.tricks import bf16` gives the function, not the file."""
    names = sorted(catalogue())
    return "".join(
        [
            "# Made by `make generate`.\n",
            "from collections.abc import Callable\n\n",
            "from hf_efficient.trick import Trick\n",
            *(f"from hf_efficient.tricks.{name} import {name} as {name}\n" for name in names),
            "\ndef catalogue() -> dict[str, Callable[..., Trick]]: ...\n",
            "def defaults() -> tuple[Trick, ...]: ...\n",
        ]
    )


def _with_tables(text: str) -> str:
    for name, columns in TABLES.items():
        text = _between(text, name, _markdown(lists(name)[name], columns))
    return text


def _between(text: str, name: str, new: str) -> str:
    """Return the README with another text between the two marks of that name."""
    before, opened, rest = text.partition(f"<!-- {name} -->\n")
    _, closed, after = rest.partition(f"<!-- /{name} -->")
    assert opened, f"README.md has lost <!-- {name} -->"
    assert closed, f"README.md has lost <!-- /{name} -->"
    return f"{before}{opened}{new.rstrip()}\n{closed}{after}"


def _markdown(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    text = ", ".join(f"`{item}`" for item in value) if isinstance(value, list) else str(value)
    return text.replace("|", "\\|")


def main() -> int:
    """Write what has changed and name it."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            write(path, text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

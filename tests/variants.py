"""Spellings of tricks besides their defaults, which each trick's own test file names for the generic tests."""

from __future__ import annotations

import ast
from pathlib import Path

from hf_efficient.machine import Machine
from hf_efficient.merge import parse
from hf_efficient.trick import Trick
from hf_efficient.tricks import catalogue


def _named(list_name: str) -> list[str]:
    """Return the strings of every list of that name at the top of a file tests/tricks/test_TRICK.py."""
    found: list[str] = []
    for path in sorted((Path(__file__).parent / "tricks").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == list_name:
                found += ast.literal_eval(node.value)
    return found


VARIANTS = _named("VARIANTS")
"""Spellings that set something else than the trick with its defaults."""
NOT_FAST = _named("NOT_FAST")
"""Spellings that take many seconds to run here, for a compiler's sake; `make test` runs them, `make test-fast` not."""
SLOW = _named("SLOW")
"""Spellings that take most of a minute; `make test-all` alone runs them."""
_SPELLED = [parse(name) for name in [*catalogue(), *VARIANTS]]
PACKAGES = {need.package: "1" for trick in _SPELLED if isinstance(trick, Trick) for need in trick.needs if need.package}
GPU = Machine(gpu="test", accelerator="cuda", capability=(9, 0), gpus=8, memory_gib=80.0, packages=PACKAGES,
              cpu_bf16=True)  # fmt: skip
"""A machine that has what every trick needs."""

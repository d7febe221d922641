"""What figures were measured with and on: command, commit, date, machine and versions."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hf_efficient.emit.here import training_machine


def measured_on(command: str, packages: Iterable[str]) -> dict[str, Any]:
    """Return the head of a measured file; `packages` are those whose versions matter."""
    root = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return {
        "command": command,
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {training_machine().cpu}, 2 cores, no accelerator",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }

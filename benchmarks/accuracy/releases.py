"""Each release of transformers and peft that rows were measured with, in its own folder beside the installed torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hf_efficient" / "accuracy"
INSTALLED = "installed"
TOKENIZERS = {"4.48": ">=0.21,<0.22", "4.45": ">=0.20,<0.21"}
LOWEST = "4.45.0"
"""The lowest that builds every model of the table; 4.44.2 has no Granite and no sdpa for Phi-3."""
BESIDE = ("requests", "urllib3", "charset-normalizer", "certifi", "huggingface-hub<1.0")
"""What transformers 4 asks for and the environment of the installed 5 lacks, or has too new."""


def command(release: str, peft: str, folder: Path) -> list[str]:
    """Return the command line that installs a release."""
    ranges = [limit for start, limit in TOKENIZERS.items() if release.startswith(start)]
    if not ranges:
        raise SystemExit(
            f"No range of tokenizers is known for transformers {release}: add it to benchmarks/accuracy/releases.py."
        )
    packages = [f"transformers=={release}", f"peft=={peft}", f"tokenizers{ranges[0]}", *BESIDE]
    return [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--no-deps",
        "--target",
        str(folder),
        *packages,
    ]


def folder_of(release: str, peft: str) -> Path | None:
    """Return the folder of a release, installed when it is not there; None for the one of this environment."""
    if release == INSTALLED:
        return None
    folder = CACHE / f"transformers-{release}-peft-{peft}"
    if not (folder / "transformers").is_dir():
        asked = command(release, peft, folder)
        print("+", " ".join(asked), file=sys.stderr, flush=True)
        subprocess.run(asked, check=True)
    return folder


def environment(folder: Path | None) -> dict[str, str]:
    """Return the environment of a process that imports from that folder first."""
    here = [str(Path(__file__).parents[2])]
    path = os.pathsep.join(([str(folder)] if folder else []) + here)
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

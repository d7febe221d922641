"""How many devices share an update: processes, or the GPUs of one process under nn.DataParallel."""

from __future__ import annotations

from typing import Any

from hf_efficient.reading.settings import NOTHING, UNKNOWN
from hf_efficient.reading.setup import Setup


def ranks(setup: Setup) -> Any:
    """Return how many devices each take a batch of their own per step; UNKNOWN where no file and no command says it."""
    if setup.processes is not None and setup.processes > 1:
        return setup.processes
    if setup.launcher == "python" or (setup.processes == 1 and setup.launcher is None):
        return data_parallel(setup)
    alone = setup.processes == 1 or visible_gpus(setup) == 1
    return 1 if alone else UNKNOWN


def data_parallel(setup: Setup) -> Any:
    """Return how many GPUs nn.DataParallel would use: several visible ones and one plain process; else 1 or UNKNOWN."""
    if setup.trainer is None or (setup.processes or 1) > 1 or setup.launcher not in ("python", None):
        return 1
    gpus = visible_gpus(setup)
    return gpus if setup.launcher == "python" or gpus == 1 else UNKNOWN


def visible_gpus(setup: Setup) -> Any:
    """Return the GPUs that a process sees: CUDA_VISIBLE_DEVICES cuts the machine's; UNKNOWN where none is known."""
    visible = (setup.env or NOTHING).get("CUDA_VISIBLE_DEVICES")
    if isinstance(visible, int | str) and not isinstance(visible, bool):
        return len([part for part in str(visible).split(",") if part.strip()])
    if visible is UNKNOWN:
        return UNKNOWN
    return (setup.machine or NOTHING).number("gpus")

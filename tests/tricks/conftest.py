"""A quick process: one thread, since two on shared cores wait for each other, and no garbage among the imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import transformers.trainer  # noqa: F401  its objects are among the frozen


@pytest.fixture(autouse=True, scope="session")
def _quick() -> Iterator[None]:
    # Trainer collects garbage at the end of train(): 0.27 s through what the imports left, 0.01 s without it.
    gc.collect()
    gc.freeze()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()

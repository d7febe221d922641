"""What the tests of the tricks share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_override_of_an_earlier_run() -> None:
    """Forget which tensors earlier optimizers of this process kept in 32 bits: bitsandbytes keeps them by position."""
    if "bitsandbytes" in sys.modules:
        sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance().initialize()

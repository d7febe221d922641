"""A trial that leaves no trace: random numbers, modes and buffers are put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run the body without gradients and without dropout; put back all that a forward pass changes.

    Batch norm that was training stays so, because there it makes the rows of a batch depend on each other.
    """
    import torch

    modes = {module: module.training for module in model.modules()}
    # Under their names as well: some models put a longer buffer in the place of the one they had.
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    # accelerate's prepare puts autocast and 32-bit outputs around forward, which hide small differences
    forward = vars(model).get("forward")
    if "_original_forward" in vars(model):
        model.forward = model._original_forward  # type: ignore[assignment]
    model.eval()
    for module in (*training_batch_norms(modes), *_repacked(modes)):
        module.training = modes[module]
    try:
        with torch.no_grad(), random_numbers_kept():
            yield
    finally:
        if forward is not None:
            model.forward = forward
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer.copy_(before)


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Put `model` in the mode that Trainer will train it in: `from_pretrained` leaves it evaluating."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def training_batch_norms(modes: dict[nn.Module, bool]) -> list[nn.Module]:
    """Return those modules that normalise over the rows of a batch when they train, and do."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return [module for module, training in modes.items() if training and isinstance(module, _BatchNorm)]


def _repacked(modes: dict[nn.Module, bool]) -> list[nn.Module]:
    """Return bitsandbytes' layers: on a CPU they repack their weights when they evaluate, for good."""
    return [module for module in modes if type(module).__module__.startswith("bitsandbytes.")]


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the states of python's, numpy's and torch's generators back afterwards, those of all devices too."""
    import numpy as np
    import torch

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)

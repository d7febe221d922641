"""A run of its own inside a process: what accelerate, torch and plans keep for the whole process is put back."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any
from unittest import mock

from hf_efficient.promises.facts import graphs


@contextmanager
def apart() -> Iterator[None]:
    """Run the block in a fresh state of accelerate and of the random numbers, then put everything back.

    What the block prints goes to stderr: stdout is for the verdicts.
    """
    import numpy
    import torch

    with ExitStack() as stack:
        for part in (mock.patch.dict(os.environ), warnings.catch_warnings(), redirect_stdout(sys.stderr)):
            stack.enter_context(part)
        stack.enter_context(_accelerate())
        stack.enter_context(torch.enable_grad())
        warnings.simplefilter("ignore")
        generators = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        backends: Any = torch.backends
        matmul, compiled, dtype = backends.fp32_precision, graphs(), torch.get_default_dtype()
        try:
            yield
        finally:
            random.setstate(generators[0])
            numpy.random.set_state(generators[1])
            torch.set_rng_state(generators[2])
            backends.fp32_precision = matmul
            torch.set_default_dtype(dtype)
            if graphs() != compiled:
                torch._dynamo.reset()


@contextmanager
def _accelerate() -> Iterator[None]:
    """Give the block its own AcceleratorState, plans' switches and quiet libraries."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from datasets.utils import logging as data_logging
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    from hf_efficient.emit import process

    shared = [
        *(kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)),
        process._SWITCHED,
        process._VARIABLES,
    ]
    kept = [dict(state) for state in shared]
    hub: Any = hub_logging
    quiet, hub_quiet = logging.get_verbosity(), hub.get_verbosity()
    bars, data_bars = logging.is_progress_bar_enabled(), data_logging.is_progress_bar_enabled()
    for state in shared:
        state.clear()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    data_logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(quiet)
        hub.set_verbosity(hub_quiet)
        if bars:
            logging.enable_progress_bar()
        if data_bars:
            data_logging.enable_progress_bar()
        for state, before in zip(shared, kept, strict=True):
            state.clear()
            state.update(before)

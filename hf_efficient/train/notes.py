"""What a loss of the user writes down in its trainer, taken back after a trial."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer

DATA = ("train_dataset", "eval_dataset")
LARGEST = 2**20
"""Elements of a tensor that is still a note."""


@contextmanager
def notes_kept(trainer: Trainer) -> Iterator[None]:
    """Put back attributes, and what is in containers, small tensors and generators; all stay the same objects."""
    before = dict(vars(trainer))
    seen: set[int] = set()
    undo = [step for name, value in before.items() if name not in DATA for step in _undo(value, seen)]
    try:
        yield
    finally:
        for step in undo:
            step()
        for name in vars(trainer).keys() - before.keys():
            delattr(trainer, name)
        vars(trainer).update(before)


def _undo(value: Any, seen: set[int]) -> Iterator[Callable[[], Any]]:
    """Yield what puts back the contents of `value`, and of containers in it."""
    import numpy as np
    import torch

    if isinstance(value, random.Random):
        yield partial(value.setstate, value.getstate())
    elif isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, torch.Tensor):
        if not value.requires_grad and value.numel() <= LARGEST:
            yield _tensor_back(value)
    elif isinstance(value, (list, dict, set, deque)) and id(value) not in seen:
        seen.add(id(value))
        yield _contents_back(value)
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _undo(inner, seen)


def _tensor_back(value: Any) -> Callable[[], Any]:
    version, content = value._version, value.clone()

    def back() -> None:
        if value._version != version:
            value.copy_(content)

    return back


def _contents_back(value: Any) -> Callable[[], Any]:
    content = dict(value) if isinstance(value, dict) else list(value)

    def back() -> None:
        value.clear()
        (value.extend if isinstance(value, (list, deque)) else value.update)(content)

    return back

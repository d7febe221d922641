"""The whole step of the whole model: a few layers traced, all of them counted."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from hf_efficient.memory.build import faked
from hf_efficient.memory.extend import BETWEEN, NotAlikeError, Segment, extended, segments
from hf_efficient.memory.quantize import dequantizing
from hf_efficient.memory.record import Event
from hf_efficient.memory.stacks import KEPT, Stack, shorten, stacks
from hf_efficient.memory.step import Step, Traced, trace
from hf_efficient.memory.values import Values

Inputs = Callable[[nn.Module], dict[str, Any]]


def whole_step(model: nn.Module, inputs: Inputs, step: Step, *, fast: bool = True) -> list[Segment]:
    """Return what forward and backward of `model`, on meta tensors and used up by it, do with memory, in order.

    Stacks of like layers are shortened, traced at two lengths, and extended; where the shorter one does not extend to
    exactly the longer one, every layer is traced. Raises ValueError where the forward pass depends on data.
    """
    found = stacks(model)
    if not found or not fast:
        return _traced(model, inputs, step, found)
    fewer, more = (_shortened(model, found, units) for units in (KEPT, KEPT + 1))
    try:
        few = _traced(fewer, inputs, step, found)
        if heights(_extended(few, [1] * len(found))) != heights(_traced(more, inputs, step, found)):
            raise NotAlikeError("one more layer does something else")
        return _extended(few, [stack.units - KEPT for stack in found])
    except (NotAlikeError, IndexError, KeyError):
        return _traced(model, inputs, step, found)


def _shortened(model: nn.Module, found: Sequence[Stack], units: int) -> nn.Module:
    """Return a copy of a model on meta with `units` units of each stack; the model itself stays as it is."""
    layers = [model.get_submodule(stack.path) for stack in found]
    for stack in found:
        shorten(model, stack, units)
    try:
        return copy.deepcopy(model)
    finally:
        for stack, whole in zip(found, layers, strict=True):
            parent, _, name = stack.path.rpartition(".")
            setattr(model.get_submodule(parent), name, whole)


def _extended(few: list[Segment], more: Sequence[int]) -> list[Segment]:
    for stack, units in enumerate(more):
        few = extended(few, stack, units)
    return few


def heights(cut: Sequence[Segment]) -> list[int]:
    """Return every local maximum of the live bytes, in order: what two traces that are alike share."""
    live, rising, found = 0, False, []
    for segment in cut:
        for event in segment.events:
            if event.size < 0 and rising:
                found.append(live)
            rising = event.size > 0 or (rising and event.size == 0)
            live += event.size
    return found


def _traced(model: nn.Module, inputs: Inputs, step: Step, marked: Sequence[Stack]) -> list[Segment]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    faked(model, mode)
    with mode, Values():
        batch = inputs(model)
    step = copy.copy(step)
    step.paths = tuple(stack.path for stack in marked)
    with dequantizing(model), _saying_what_depends_on_data(model):
        done: Traced = trace(model, batch, step, mode)
    return segments(done.events, done.marks, [stack.period for stack in marked] or [1])


@contextmanager
def _saying_what_depends_on_data(model: nn.Module) -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"{type(model).__name__} decides by its data what it computes ({error.func} in {_place(error)}), so that "
            "its memory depends on the values of a batch: measure a real step instead."
        ) from error


def _place(error: BaseException) -> str:
    """Return the line of a model's code that an error comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    frames = [f for f in frames if "/memory/" not in f.filename] or frames
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "its forward pass"


def events_of(cut: Sequence[Segment]) -> Iterator[tuple[Event, int, int]]:
    """Yield every event with the stack and the unit in which it happens; unit -1 between the layers."""
    for segment in cut:
        for event in segment.events:
            yield event, segment.stack, segment.unit if segment.unit != BETWEEN else BETWEEN


def nbytes(tensors: Iterator[torch.Tensor]) -> int:
    """Return the bytes of these tensors' storages on the card, each once."""
    from hf_efficient.memory.record import rounded

    seen: dict[int, int] = {}
    for tensor in tensors:
        seen.setdefault(id(tensor), rounded(tensor.untyped_storage().nbytes()))
    return sum(seen.values())

"""The whole step of the whole model: a few layers traced, all of them counted."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from hf_efficient.memory.build import body_of, faked
from hf_efficient.memory.extend import NotAlikeError, Segment, extended, segments
from hf_efficient.memory.quantize import dequantizing
from hf_efficient.memory.stacks import KEPT, Stack, shorten, stacks
from hf_efficient.memory.step import Step, Traced, trace
from hf_efficient.memory.values import Values
from hf_efficient.wording import one_sentence

TRIES = ((KEPT, 1), (KEPT + 1, 2), (KEPT + 1, 1))
"""Units kept, and the first of the two that must be alike.

Where checkpointed layers share a bias (T5), the second unit is the last to add to its gradient; where gradients are
reduced one unit later (FSDP2), the last but one frees what the head left.
"""
Inputs = Callable[[nn.Module], dict[str, Any]]


def whole_step(model: nn.Module, inputs: Inputs, step: Step, *, fast: bool = True) -> list[Segment]:
    """Return what forward and backward of `model`, on meta tensors and used up by it, do with memory, in order.

    Stacks of like layers are shortened, traced at two lengths, and extended; where the shorter one does not extend to
    exactly the longer one, every layer is traced. Raises ValueError where the forward pass depends on data.
    """
    found = stacks(model)
    for kept, after in TRIES if found and fast else ():
        with suppress(Exception):  # a model may not run with fewer layers; what is wrong with it, the whole one says
            return _from_few(model, inputs, step, kept=kept, after=after)
    return _traced(model, inputs, step, found)


def _from_few(model: nn.Module, inputs: Inputs, step: Step, *, kept: int, after: int) -> list[Segment]:
    """Return the whole trace from `kept` units; raise NotAlikeError where that does not extend to one more.

    `after`: the first of the two units that must be alike.
    """
    found = stacks(model)
    fewer, more = (_shortened(model, found, units) for units in (kept, kept + 1))
    few = _traced(fewer, inputs, step, found)
    if heights(_extended(few, [1] * len(found), after)) != heights(_traced(more, inputs, step, found)):
        raise NotAlikeError("one more layer does something else")
    return _extended(few, [stack.units - kept for stack in found], after)


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


def _extended(few: list[Segment], more: Sequence[int], after: int) -> list[Segment]:
    for stack, units in enumerate(more):
        few = extended(few, stack, units, after=after)
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
    with dequantizing(model), _in_a_sentence(model):
        done: Traced = trace(model, batch, step, mode)
    return segments(done.events, done.marks, [stack.period for stack in marked] or [1])


@contextmanager
def _in_a_sentence(model: nn.Module) -> Iterator[None]:
    """Say of a model that cannot be traced what it is that cannot."""
    name = type(body_of(model)).__name__
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"{name} decides by its data what it computes ({error.func} in {_place(error)}), so that its memory "
            "depends on the values of a batch: measure a real step instead."
        ) from error
    except Exception as error:  # whatever a model's code raises
        raise ValueError(
            f"{name} does not compute on tensors without data ({type(error).__name__} in {_place(error)}: "
            f"{one_sentence(error)[:300]}): check its configuration, or measure a real step instead."
        ) from error


def _place(error: BaseException) -> str:
    """Return the line of a model's code that an error comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    frames = [f for f in frames if "/memory/" not in f.filename] or frames
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "its forward pass"

"""What FSDP shards as one: layers, trained leaves in frozen layers, and the rest; and when each comes and goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from hf_efficient.memory.build import body_of
from hf_efficient.memory.record import Recorder

ALIGNED = 16
"""Bytes to which FSDP1 pads each parameter: _get_aligned_numel of torch/distributed/fsdp/_flat_param.py."""


@dataclass(kw_only=True, eq=False)
class Unit:
    """Weights that are gathered together."""

    modules: list[nn.Module]
    """While one of them computes, the weights are there."""
    names: list[str]
    """Of the weights."""
    kept: bool = False
    """Whether the weights stay gathered from forward to backward."""
    gathered: int = 0
    """Bytes of the whole weights, in the dtype of the computation."""
    part: int = 0
    """Bytes of one rank's part in the dtype of the computation; 0 where it is gathered as it is stored."""
    shard: int = 0
    """Bytes of one rank's part as it is stored."""
    trained: bool = False
    gradient: int = 0
    """Bytes of the whole gradients, in the dtype of the computation."""
    reduced: int = 0
    """Bytes of one rank's part of them before it is stored."""
    kept_gradient: int = 0
    """Bytes of one rank's part of them as it is stored."""
    frozen: int = 0
    """Bytes of frozen weights among trained ones."""
    missing: set[str] = field(default_factory=set)
    """Weights whose gradient has not come yet."""
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Buffer -> key and bytes."""

    def come(self, recorder: Recorder, buffer: str, size: int, role: str = "gathered") -> None:
        """Note that a buffer is there, unless it is already."""
        if buffer not in self.held and size:
            self.held[buffer] = recorder.allocate(size, role), size

    def go(self, recorder: Recorder, *buffers: str) -> None:
        """Note that buffers are gone; those that are not there are passed over."""
        for buffer in buffers:
            if buffer in self.held:
                recorder.free(*self.held.pop(buffer))


def layer_units(model: nn.Module) -> list[Unit]:
    """Return a unit for each module of the classes that the model does not split, as TRANSFORMER_BASED_WRAP does."""
    inner = body_of(model)
    classes = set(getattr(inner, "_no_split_modules", None) or ())
    return [
        Unit(modules=[module], names=[f"{name}.{one}" for one, _ in module.named_parameters()])
        for name, module in model.named_modules()
        if type(module).__name__ in classes
    ]


def leaf_units(model: nn.Module) -> list[Unit]:
    """Return a unit for each trained leaf, as PEFT's wrapping policy does (peft.utils.other.fsdp_auto_wrap_policy)."""
    return [
        Unit(modules=[module], names=[f"{name}.{one}" for one, _ in module.named_parameters()])
        for name, module in model.named_modules()
        if not list(module.children()) and getattr(module, "weight", None) is not None and module.weight.requires_grad
    ]


def left_alone(model: nn.Module, pattern: str) -> set[str]:
    """Return the weights in modules whose whole name the regular expression matches, which FSDP leaves as they are."""
    modules = [name for name, _ in model.named_modules() if pattern and re.fullmatch(pattern, name)]
    return {name for name, _ in model.named_parameters() if any(name.startswith(f"{one}.") for one in modules)}


def split(model: nn.Module, units: Sequence[Unit], alone: set[str]) -> list[Unit]:
    """Give each weight to the innermost of its units, and the rest to a last one, the root, which stays gathered."""
    taken = set(alone)
    for unit in sorted(units, key=lambda unit: len(unit.names)):
        unit.names = [name for name in unit.names if name not in taken]
        taken |= set(unit.names)
    rest = [name for name, _ in model.named_parameters() if name not in taken]
    return [unit for unit in units if unit.names] + [Unit(modules=[model], names=rest, kept=True)]


def measure(model: nn.Module, units: Sequence[Unit], ranks: int, mixed: torch.dtype | None, *, flat: bool) -> None:
    """Fill in the bytes of each unit. Trained weights are stored in float32 where `mixed` is the computation's dtype.

    `flat`: one tensor of all weights is cut; else each is cut along its first dimension, and padded.
    """
    weights = dict(model.named_parameters())
    for unit in units:
        own = [weights[name] for name in unit.names]
        unit.trained = any(p.requires_grad for p in own)
        for parameter in own:
            width = (mixed if mixed and parameter.is_floating_point() else parameter.dtype).itemsize
            stored = 4 if mixed and parameter.requires_grad else parameter.element_size()
            if flat:
                whole = -(-parameter.numel() * width // ALIGNED) * ALIGNED // width
                mine = -(-whole // ranks)
            else:
                first = parameter.shape[0] if parameter.ndim else 1
                mine = -(-first // ranks) * (parameter.numel() // first)
                whole = mine * ranks
            unit.gathered += whole * width
            unit.shard += mine * stored
            unit.frozen += 0 if parameter.requires_grad or not unit.trained else whole * width
            unit.part += mine * width if mixed and (not flat or parameter.requires_grad) else 0
            # a flat tensor has one gradient; else frozen weights have none
            if parameter.requires_grad or (flat and unit.trained):
                unit.gradient += whole * width
                unit.reduced += mine * width if mixed else 0
                unit.kept_gradient += mine * stored


def first_tensor(values: Any) -> torch.Tensor | None:
    """Return the first tensor that a gradient goes through, of a module's arguments or of what it returns."""
    if isinstance(values, torch.Tensor):
        return values if values.requires_grad else None
    if isinstance(values, dict) or hasattr(values, "values"):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return next((found for value in values if (found := first_tensor(value)) is not None), None)
    return None


def hook(units: Sequence[Unit], before: Callable[..., None], after: Callable[..., None]) -> None:
    """Call `before(unit, inputs)` and `after(unit, inputs, out)` around the forward pass of each unit's modules."""

    def enter(unit: Unit, module: nn.Module, args: Any, kwargs: Any) -> None:
        before(unit, (args, kwargs))

    def leave(unit: Unit, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        after(unit, (args, kwargs), out)

    for unit in units:
        for module in unit.modules:
            module.register_forward_pre_hook(partial(enter, unit), with_kwargs=True)
            module.register_forward_hook(partial(leave, unit), with_kwargs=True)


def on_gradients(model: nn.Module, units: Sequence[Unit], arrived: Callable[[Unit, torch.Tensor], None]) -> None:
    """Call `arrived(unit, weight)` for each weight of a unit whose gradient is there; `unit.missing` are the others."""

    def one(unit: Unit, name: str, weight: torch.Tensor) -> None:
        unit.missing.discard(name)
        arrived(unit, weight)

    weights = dict(model.named_parameters())
    for unit in units:
        for name in unit.names:
            if weights[name].requires_grad:
                unit.missing.add(name)
                weights[name].register_post_accumulate_grad_hook(partial(one, unit, name))


def keep_whole_gradients(units: Sequence[Unit], recorder: Recorder) -> None:
    """Note the gradients of earlier micro-batches, which are neither reduced nor cut before the last of an update."""
    for unit in units:
        unit.come(recorder, "whole gradient", unit.gradient, "gradient")


def gradients_of(model: nn.Module, unit: Unit) -> Iterator[torch.nn.Parameter]:
    """Yield the weights of a unit that have a gradient."""
    weights = dict(model.named_parameters())
    yield from (weights[name] for name in unit.names if weights[name].grad is not None)


def at_the_end(loss: torch.Tensor, first: Callable[[], None], last: Callable[[], None]) -> None:
    """Call `first` when the backward pass from `loss` begins, and `last` when it is over."""

    def begun(_: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(last)
        first()

    loss.register_hook(begun)

"""FSDP1: a layer's flat weights are gathered at once, its gradients copied into one tensor before they are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hf_efficient.memory import units as u
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.units import Unit


class Flat:
    """What FSDP1 does during a step. Source: torch/distributed/fsdp/_runtime_utils.py and _flat_param.py.

    With reentrant checkpointing around the wrapped layer, as transformers 4 has it, nothing is prefetched, since a
    forward pass without gradients registers no hooks; and frozen layers keep their inputs, with the gradients of these,
    until the backward pass is over: the handle of `register_multi_grad_hook` keeps the node that accumulates the
    gradient of the checkpoint's detached input.
    """

    def __init__(
        self, model: nn.Module, recorder: Recorder, units: Sequence[Unit], *, reentrant: bool, accumulating: bool
    ) -> None:
        self.model, self.recorder, self.units, self.root = model, recorder, units, units[-1]
        self.reentrant, self.accumulating = reentrant, accumulating
        self.order: list[Unit] = []
        """In which the units leave the forward pass."""
        self.mine: set[Unit] = set()
        """Gathered by their own forward pass."""
        self.kept: list[torch.Tensor] = []
        u.hook(units, self.before, self.after)
        u.on_gradients(model, units, self.arrived)

    def gather(self, unit: Unit) -> None:
        """Note the whole weights; mixed precision casts the own part first."""
        if "weights" not in unit.held:
            unit.come(self.recorder, "part", unit.part)
            unit.come(self.recorder, "weights", unit.gathered)
            unit.go(self.recorder, "part")

    def before(self, unit: Unit, inputs: Any) -> None:
        """Gather for the forward pass, or for its repetition."""
        if "weights" not in unit.held:
            self.gather(unit)
            self.mine.add(unit)
        if unit is self.root and self.accumulating:
            u.keep_whole_gradients(self.units, self.recorder)
        entered = u.first_tensor(inputs)
        if unit.trained or entered is None or not torch.is_grad_enabled():
            return
        if entered.is_leaf and self.recorder.phase == "recompute" and self.reentrant:
            self.kept.append(entered)
        if unit is not self.root:
            entered.register_hook(lambda _: unit.go(self.recorder, "weights"))

    def after(self, unit: Unit, inputs: Any, out: Any) -> None:
        """Let the weights go again, and come back when the gradient of the output is there."""
        mine = unit in self.mine
        self.mine.discard(unit)
        if self.recorder.phase == "forward":
            self.order.append(unit)
        left = u.first_tensor(out)
        if unit is self.root:
            if left is not None:
                u.at_the_end(left, lambda: self.prefetch(unit), self.end)
            return
        if mine and not unit.kept:
            unit.go(self.recorder, "weights")
        if left is not None and torch.is_grad_enabled():
            left.register_hook(lambda _: self.backward(unit))

    def backward(self, unit: Unit) -> None:
        """Gather for the backward pass."""
        self.gather(unit)
        self.prefetch(unit)

    def prefetch(self, unit: Unit) -> None:
        """Gather the unit whose turn is next, while this one computes."""
        place = self.order.index(unit) if unit in self.order else 0
        if place and not self.reentrant:
            self.gather(self.order[place - 1])

    def arrived(self, unit: Unit, weight: torch.Tensor) -> None:
        """Reduce a unit's gradients when the last of them is there."""
        if unit.missing:
            return
        unit.come(self.recorder, "zeros", unit.frozen, "bucket")  # for weights beside trained ones in one flat tensor
        first = self.accumulating and "whole gradient" not in unit.held
        unit.come(self.recorder, "whole gradient" if first else "flat gradient", unit.gathered, "gradient")
        for parameter in u.gradients_of(self.model, unit):
            parameter.grad = None
        unit.go(self.recorder, "zeros", "weights")
        if not self.accumulating:
            self.reduce(unit)
        unit.go(self.recorder, "flat gradient")

    def reduce(self, unit: Unit) -> None:
        """Keep one rank's part of a gradient."""
        unit.come(self.recorder, "reduced", unit.part, "bucket")
        unit.come(self.recorder, "gradient", unit.shard, "gradient")
        unit.go(self.recorder, "reduced", "whole gradient")

    def end(self) -> None:
        """Let everything go that is still gathered."""
        for unit in self.units:
            unit.go(self.recorder, "weights")
            if "whole gradient" in unit.held:
                self.reduce(unit)
        self.kept.clear()

"""FSDP2: a layer's weights are gathered into a buffer and copied out of it, its gradients into one to be reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hf_efficient.memory import units as u
from hf_efficient.memory.build import body_of
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.units import Unit


def ends(model: nn.Module) -> list[Unit]:
    """Return the embedding, where it is not tied, and the tail of final norm and head, which stays gathered.

    Source: fsdp2_prepare_model in accelerate/utils/fsdp_utils.py of 1.15.
    """
    inner: Any = body_of(model)
    names = {id(p): name for name, p in model.named_parameters()}
    head = getattr(inner, "get_output_embeddings", lambda: None)()
    embedding = getattr(inner, "get_input_embeddings", lambda: None)()
    if head is None or embedding is None or getattr(head, "weight", None) is None:
        return []
    tied = head.weight is getattr(embedding, "weight", None)
    body = getattr(inner, getattr(inner, "base_model_prefix", ""), inner)
    norm = next((m for m in reversed(list(body.children())) if "norm" in type(m).__name__.lower()), None)
    tail = [m for m in (norm, head, embedding if tied else None) if m is not None]
    made = [Unit(modules=tail, names=list({names[id(p)] for m in tail for p in m.parameters()}), kept=True)]
    if not tied:
        made.append(Unit(modules=[embedding], names=[names[id(p)] for p in embedding.parameters()]))
    return made


class Chunked:
    """What FSDP2 does during a step. Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py of 2.13.

    A layer's buffer lives on until the next layer has copied its weights out; backward, the buffer of the next is
    gathered while one computes, and what is reduced lives until the next is reduced.
    """

    def __init__(
        self, model: nn.Module, recorder: Recorder, units: Sequence[Unit], *, on_host: bool, accumulating: bool
    ) -> None:
        self.model, self.recorder, self.units, self.root = model, recorder, units, units[-1]
        self.on_host, self.accumulating = on_host, accumulating
        self.order: list[Unit] = []
        self.last: Unit | None = None
        """Whose buffer is still there."""
        self.reducing: Unit | None = None
        u.hook(units, self.before, self.after)
        u.on_gradients(model, units, lambda unit, weight: None)

    def receive(self, unit: Unit) -> None:
        """Note the buffer that is gathered into; mixed precision casts the own part first."""
        unit.come(self.recorder, "part", unit.part or (unit.shard if self.on_host else 0))
        unit.come(self.recorder, "buffer", unit.gathered)
        unit.go(self.recorder, "part")

    def before(self, unit: Unit, inputs: Any) -> None:
        """Gather for the forward pass; the buffer of the unit before goes when the weights are copied out."""
        if self.recorder.phase == "recompute" or "weights" in unit.held:
            return
        if unit is self.root and self.accumulating:
            u.keep_whole_gradients(self.units, self.recorder)
        self.receive(unit)
        unit.come(self.recorder, "weights", unit.gathered)
        if self.last is not None and self.last is not unit:
            self.last.go(self.recorder, "buffer")
        self.last = unit
        entered = u.first_tensor(inputs)
        if entered is not None and torch.is_grad_enabled() and unit is not self.root:
            entered.register_hook(lambda _: self.done(unit))

    def after(self, unit: Unit, inputs: Any, out: Any) -> None:
        """Let the weights go again, but for those that stay."""
        if self.recorder.phase == "recompute":
            return
        left = u.first_tensor(out)
        if unit not in self.order:
            self.order.append(unit)
        if unit is self.root:
            if self.last is not None:
                self.last.go(self.recorder, "buffer")
            if left is not None:
                u.at_the_end(left, self.begin, self.end)
            return
        if not unit.kept:
            unit.go(self.recorder, "weights")
        if left is not None and torch.is_grad_enabled():
            left.register_hook(lambda _: self.backward(unit))

    def begin(self) -> None:
        """Gather the last layer while the loss goes back."""
        layers = [unit for unit in self.order if not unit.kept]
        if layers:
            self.receive(layers[-1])

    def backward(self, unit: Unit) -> None:
        """Gather for the backward pass, and the next unit's buffer meanwhile."""
        if "weights" not in unit.held:
            self.receive(unit)
            unit.come(self.recorder, "weights", unit.gathered)
            unit.go(self.recorder, "buffer")
        place = self.order.index(unit) if unit in self.order else 0
        following = self.order[place - 1] if place else None
        if following is not None and "weights" not in following.held:
            self.receive(following)

    def done(self, unit: Unit) -> None:
        """Let a unit's weights go, whose gradients are there."""
        unit.go(self.recorder, "weights")
        for parameter in u.gradients_of(self.model, unit) if self.accumulating else ():
            parameter.grad = None
        if unit.trained and not self.accumulating:
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Copy a unit's gradients into one that is reduced; it stays until the next is."""
        if self.reducing is not None:
            self.reducing.go(self.recorder, "to reduce")
        unit.come(self.recorder, "to reduce", unit.gradient, "bucket")
        for parameter in u.gradients_of(self.model, unit):
            parameter.grad = None
        unit.go(self.recorder, "whole gradient")
        unit.come(self.recorder, "reduced", unit.reduced, "bucket")
        if not self.on_host:
            unit.come(self.recorder, "gradient", unit.kept_gradient, "gradient")
        unit.go(self.recorder, "reduced")
        self.reducing = unit

    def end(self) -> None:
        """Reduce what is left, and let everything go."""
        for unit in reversed(self.order):
            if "whole gradient" in unit.held or any(True for _ in u.gradients_of(self.model, unit)):
                self.reduce(unit)
            unit.go(self.recorder, "weights", "buffer")
        if self.reducing is not None:
            self.reducing.go(self.recorder, "to reduce")

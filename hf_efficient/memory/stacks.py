"""Stacks of layers that are alike: which they are, and a model that keeps a few layers of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

KEPT = 4
"""Units of a shortened stack: the first, two that must behave alike, and the last."""
LEAST = 3 * KEPT
"""Units from which on it is quicker to trace two shorter stacks."""
LONGEST_PATTERN = 8
NOT_COMPARED = ("layer_idx", "layer_id", "idx", "layer_index", "layer_number")


@dataclass(frozen=True)
class Stack:
    """Layers of a model that are alike: `units` times a pattern of `period` layers."""

    path: str
    period: int
    units: int

    @property
    def layers(self) -> int:
        """Return how many layers the stack has."""
        return self.period * self.units


def stacks(model: nn.Module) -> list[Stack]:
    """Return the stacks of `model` that are long enough to be shortened, outermost only."""
    found: list[Stack] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{other.path}.") for other in found):
            apart = len(module) > KEPT and not _shared(module)
            period = _period([_signature(layer) for layer in module]) if apart else 0
            if period and len(module) % period == 0 and len(module) // period > LEAST:
                found.append(Stack(path, period, len(module) // period))
    return found


def shorten(model: nn.Module, stack: Stack, units: int = KEPT) -> None:
    """Keep the first units of a stack and its last two, `units` in all."""
    layers = list(model.get_submodule(stack.path).children())
    tail = 2 * stack.period
    kept = layers[: units * stack.period - tail] + layers[-tail:]
    parent, _, name = stack.path.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.ModuleList(kept))


def _period(signatures: list[Any]) -> int:
    """Return after how many layers the pattern repeats, the first unit and the last one apart; 0 if it does not."""
    for period in range(1, LONGEST_PATTERN + 1):
        inner = signatures[period : len(signatures) - period]
        if len(inner) > 2 * period and all(a == b for a, b in zip(inner, inner[period:], strict=False)):
            return period
    return 0


def _shared(layers: nn.ModuleList) -> bool:
    """Say whether two layers have a weight in common, whose one gradient a shorter stack would count twice."""
    own = [{id(parameter) for parameter in layer.parameters()} for layer in layers]
    return len(set().union(*own)) < sum(map(len, own))


def _signature(layer: nn.Module) -> Any:
    """Return all that could make two layers behave differently."""
    return tuple(
        (name, type(module), tuple(_facts(module)), tuple(_tensors(module))) for name, module in layer.named_modules()
    )


def _facts(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name not in NOT_COMPARED and isinstance(value, (bool, int, float, str, type(None))):
            yield name, value
    yield "hooks", len(module._forward_hooks) + len(module._forward_pre_hooks)


def _tensors(module: nn.Module) -> Iterator[tuple[Any, ...]]:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad

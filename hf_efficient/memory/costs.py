"""What an operation computes and moves on a GPU: its floating-point operations and its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
ROWS = {aten.embedding, aten.gather, aten.index_select, aten.index, aten.nll_loss_forward, aten.nll_loss2d_forward}
"""What reads of its first tensor only the rows that it hands out."""
OVER = {aten.copy_, aten.fill_, aten.zero_}
"""What writes over its first tensor without reading it."""
NOTHING = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.lift_fresh,
    aten.resize_, aten.set_,
}  # fmt: skip


class Cost(NamedTuple):
    """What one operation takes."""

    flops: int = 0
    """Multiplications and additions, two for each pair."""
    moved: int = 0
    """Bytes read and written."""
    dtype: str = ""
    """Of its first floating-point tensor."""


def cost(func: Any, args: Any, kwargs: Any, out: Any) -> Cost:
    """Return what an operation takes as one kernel of its own; what only looks at a tensor in another way is free.

    Every tensor that goes in is read once and every one that comes out is written once. Floating-point operations are
    those of torch.utils.flop_counter, which counts products and attention, and no elementwise operation.
    """
    packet = func._overloadpacket
    made = list(tensors_in(out)) or (list(tensors_in(args[:1])) if func._schema.is_mutable else [])
    if not made or func.is_view or packet in NOTHING:
        return Cost()
    taken = [*tensors_in(args), *tensors_in(kwargs)]
    places = {tensor.untyped_storage()._cdata for tensor in taken}
    if not func._schema.is_mutable and all(tensor.untyped_storage()._cdata in places for tensor in made):
        return Cost()
    written = sum(map(_bytes, made))
    read = taken[1:] if packet in ROWS or packet in OVER else taken
    moved = written + sum(map(_bytes, read)) + (written if packet in ROWS else 0)
    flops = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
    dtype = next((t.dtype for t in (*taken, *made) if t.is_floating_point()), made[0].dtype)
    return Cost(int(flops), moved, str(dtype).removeprefix("torch."))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor covers; one that is expanded covers no more than its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor of nested lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))

"""What one rank holds all through a step, and what its optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from hf_efficient.memory.build import body_of, tensors
from hf_efficient.memory.record import Recorder, rounded
from hf_efficient.memory.weights import Weight

Wrap = Callable[[nn.Module, Recorder], None]


@dataclass(kw_only=True)
class Shares:
    """One rank's part of the training state."""

    weights: int
    """Bytes of weights on the card between the steps."""
    updated: list[Weight]
    """What the optimizer of this rank updates."""
    pieces: tuple[int, ...] = ()
    """Bytes of each storage of the weights; empty where that is not known."""
    wrapped: tuple[tuple[tuple[int, ...], int], ...] = ()
    """FSDP1's units: bytes of each weight as loaded, and of the part that one rank keeps; `pieces` are the others."""
    unpacked: int = 0
    """Bytes of the largest weight of those that are quantized when they are loaded, before it is."""
    optimizer: int | None = None
    """Bytes of optimizer state, where the engine has its own; None: what the optimizer makes for `updated`."""
    host: int = 0
    """Bytes in host memory."""
    buffers: int = 0
    """Bytes of communication buffers that are there all through the step."""
    wrap: Wrap | None = None
    """Adds what the engine does during the step: gathers weights, reduces gradients."""
    passing: Mapping[str, int] = field(default_factory=dict)
    """What the engine's own update makes in passing: its name -> bytes."""
    between: int = 0
    """Bytes of gradients that an engine keeps between the micro-batches of an update; with `wrap` alone."""
    assumptions: tuple[str, ...] = ()


def whole(model: nn.Module, gpus: int = 1) -> Shares:
    """Return what each rank holds where nothing is sharded; with several, DDP reduces gradients in buckets.

    DDP's buckets are a second copy of all gradients. Source: torch.nn.parallel.DistributedDataParallel,
    `gradient_as_bucket_view=False`, which accelerate leaves so.
    """
    updated = trained(model)
    copies = sum(w.numel * w.dtype.itemsize for w in updated) if gpus > 1 else 0
    return Shares(
        weights=bytes_of(model),
        updated=updated,
        pieces=pieces_of(model),
        unpacked=unpacked(model),
        buffers=copies,
        assumptions=("DDP keeps a second copy of the gradients in its buckets.",) if gpus > 1 else (),
    )


def bytes_of(model: nn.Module) -> int:
    """Return the bytes of all that a model holds, each storage once, in the allocator's blocks."""
    return sum(pieces_of(model))


def pieces_of(model: nn.Module) -> tuple[int, ...]:
    """Return the bytes of each storage that a model holds, in the allocator's blocks."""
    sizes = {id(tensor): rounded(tensor.untyped_storage().nbytes()) for tensor in tensors(model)}
    return tuple(size for size in sizes.values() if size)


def unpacked(model: nn.Module) -> int:
    """Return the bytes that the largest quantized weight of a model has before it is packed; 0 where none is."""
    states = [state for module in model.modules() if (state := getattr(module, "quant_state", None)) is not None]
    return max((state.shape.numel() * state.dtype.itemsize for state in states), default=0)


def trained(model: nn.Module) -> list[Weight]:
    """Return the weights that an optimizer updates, as it sees them."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return [
        Weight(tuple(p.shape), p.dtype, id(p) in embeddings, name, id(p) in linear)
        for name, p in model.named_parameters()
        if p.requires_grad
    ]


def counted(model: nn.Module) -> tuple[int, int]:
    """Return how many parameters a model has, and how many of them train; packed ones count as they were."""
    total = trainable = 0
    for parameter in body_and_adapter(model):
        state = getattr(parameter, "quant_state", None)
        total += state.shape.numel() if state is not None else parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
    return total, trainable


def body_and_adapter(model: nn.Module) -> list[torch.nn.Parameter]:
    """Return every parameter, each once; a packed one carries its quantization state."""
    for module in model.modules():
        if getattr(module, "quant_state", None) is not None:
            module.weight.quant_state = module.quant_state  # type: ignore[union-attr]
    return list(model.parameters())


def vocabulary(model: nn.Module) -> int | None:
    """Return the last dimension of a model's logits over a vocabulary; None for other heads."""
    inner = body_of(model)
    head = getattr(inner, "get_output_embeddings", lambda: None)()
    size = getattr(head, "out_features", None) or (head.weight.shape[0] if head is not None else None)
    return int(size) if size else None

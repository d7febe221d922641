"""FSDP: what one rank holds of weights, gradients and optimizer state, and what it gathers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hf_efficient.memory.build import tensors
from hf_efficient.memory.fsdp1 import Flat
from hf_efficient.memory.fsdp2 import Chunked, ends
from hf_efficient.memory.reading import Run
from hf_efficient.memory.record import Recorder, rounded
from hf_efficient.memory.shares import Shares, Wrap, trained, unpacked
from hf_efficient.memory.units import Unit, layer_units, leaf_units, left_alone, measure, split
from hf_efficient.memory.weights import Weight

MOMENTS = 2
"""Of the optimizer that updates in host memory."""


def fsdp(model: nn.Module, how: Mapping[str, Any], run: Run, ranks: int) -> Shares:
    """Return one rank's shares under FSDP with these keys of `fsdp_config`; `model` computes in the mixed dtype then.

    Trained weights are stored in float32 under mixed precision, as accelerate makes them; frozen ones stay as loaded.
    """
    mixed = getattr(torch, run.autocast) if run.autocast else None
    flat = int(how.get("version", how.get("fsdp_version", 2))) == 1
    alone = left_alone(model, str(how.get("ignored_modules") or ""))
    units = units_of(model, flat, alone)
    if how.get("reshard_after_forward", True) in (False, "SHARD_GRAD_OP"):
        for unit in units:
            unit.kept = True
    measure(model, units, ranks, mixed, flat=flat)
    offload = bool(how.get("cpu_offload", how.get("offload_params", False)))
    if offload and flat:
        raise ValueError("FSDP1 with offloaded weights has no estimate: take version 2 in fsdp_config.")
    wrapped = _wrapped(model, units) if flat else ()
    updated = [w if w.path in alone else _mine(w, ranks, mixed, flat=flat) for w in trained(model)]
    if mixed:
        for name, parameter in model.named_parameters():
            if name not in alone and parameter.is_floating_point():
                parameter.data = parameter.data.to(mixed)
    whole = sum(rounded(p.numel() * p.element_size()) for name, p in model.named_parameters() if name in alone)
    shards = [unit.shard for unit in units]
    stored, states = sum(shards), sum(w.numel * w.dtype.itemsize for w in updated)
    return Shares(
        weights=(0 if offload else stored) + whole + _beside(model),
        updated=updated,
        pieces=() if offload else tuple(filter(None, (*([] if flat else shards), whole, _beside(model)))),
        wrapped=wrapped,
        unpacked=unpacked(model),
        optimizer=0 if offload else None,
        host=stored + (1 + MOMENTS) * states if offload else 0,
        wrap=_wrap(units, alone, run, flat=flat, on_host=offload),
        assumptions=tuple(_said(run, offload)),
    )


def units_of(model: nn.Module, flat: bool, alone: set[str]) -> list[Unit]:
    """Return what FSDP gathers together, the root last. Raises ValueError for a model that names no layers."""
    layers = layer_units(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} names no layers that FSDP could shard one by one: take zero, which needs none."
        )
    if flat:
        frozen = not all(p.requires_grad for p in model.parameters())
        return split(model, [*(leaf_units(model) if frozen else []), *layers], alone)
    return split(model, [*layers, *ends(model)], alone)


def _wrapped(model: nn.Module, units: list[Unit]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return what wrapping takes of each unit: its weights go to the card, into one tensor, of which a part stays."""
    weights = dict(model.named_parameters())
    return tuple(
        (tuple(weights[name].numel() * weights[name].element_size() for name in unit.names), unit.shard)
        for unit in units
        if unit.names
    )


def _wrap(units: list[Unit], alone: set[str], run: Run, *, flat: bool, on_host: bool) -> Wrap:
    accumulating = run.accumulation > 1
    reentrant = bool(run.checkpointing and run.checkpointing.get("reentrant"))

    def during(model: nn.Module, recorder: Recorder) -> None:
        here = units_of(model, flat, alone)  # of the model that is traced, which has fewer layers
        sizes = {name: unit for unit in units for name in unit.names}
        for unit in here:
            if unit.names:  # FSDP2's root may have no weights of its own
                _like(unit, sizes[unit.names[0]])
        if flat:
            Flat(model, recorder, here, reentrant=reentrant, accumulating=accumulating)
        else:
            Chunked(model, recorder, here, on_host=on_host, accumulating=accumulating)

    return during


def _like(unit: Unit, measured: Unit) -> None:
    """Take over the bytes; layers are alike, and the shortened model has the first of them."""
    unit.gathered, unit.part, unit.shard = measured.gathered, measured.part, measured.shard
    unit.trained, unit.frozen, unit.kept = measured.trained, measured.frozen, measured.kept
    unit.gradient, unit.reduced, unit.kept_gradient = measured.gradient, measured.reduced, measured.kept_gradient


def _mine(weight: Weight, ranks: int, mixed: torch.dtype | None, *, flat: bool) -> Weight:
    """Return the part of a weight that one rank updates."""
    if flat:
        shape: tuple[int, ...] = (-(-weight.numel // ranks),)
    else:
        shape = (-(-weight.shape[0] // ranks), *weight.shape[1:]) if weight.shape else (1,)
    return weight._replace(shape=shape, dtype=torch.float32 if mixed else weight.dtype)


def _beside(model: nn.Module) -> int:
    """Return the bytes of what is not sharded: buffers, and what quantization keeps beside its weights."""
    weights = {id(p) for p in model.parameters()}
    held = {id(t): t for t in tensors(model) if id(t) not in weights}
    return sum(rounded(tensor.untyped_storage().nbytes()) for tensor in held.values())


def _said(run: Run, offload: bool) -> list[str]:
    said = []
    if run.accumulation > 1:
        said.append(
            "Whole gradients stay on the card between the micro-batches of an update, in the dtype of the computation."
        )
    if offload:
        said.append(
            "The update happens in host memory, with two moments for each weight; host memory is that of one rank."
        )
    return said

"""DeepSpeed ZeRO: what one rank holds of weights, gradients and optimizer state, and its buckets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from hf_efficient.emit.deepspeed import offload_devices
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.shares import Shares, bytes_of, pieces_of, trained, unpacked
from hf_efficient.memory.sharing import MASTER, UPDATED, bucket_bytes

PERSISTENT = 10
PREFETCHED = 0.9
"""transformers fills "auto": parameters up to 10 x hidden size stay gathered, 0.9 x hidden^2 are prefetched."""
GROUP = 1_000_000_000
"""DeepSpeed's default of sub_group_size: parameters that are updated together."""
REUSED = 1_000_000_000
"""Its default of stage3_max_reuse_distance: parameters that are used again within so many stay gathered."""
STATES = MASTER - UPDATED
"""Bytes of float32 weights and two float32 moments."""


def zero(model: nn.Module, how: Mapping[str, Any], ranks: int, *, accumulating: bool = False) -> Shares:
    """Return one rank's shares under ZeRO with these keys of `zero_optimization`; weights are in 16 bits by now.

    Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py of 0.19.8.
    """
    stage = int(how.get("stage", 0))
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    optimizer_on, weights_on = offload_devices(how).values()
    offload, everything = optimizer_on != "none", weights_on != "none"
    share = -(-numbers // ranks)
    dtype = next((p.dtype for p in model.parameters() if p.requires_grad), torch.float32)
    bucket = bucket_size(model, how)
    buckets = bucket_bytes(
        stage=stage,
        contiguous_gradients=how.get("contiguous_gradients", True),
        overlap_comm=how.get("overlap_comm", stage == 3),
        reduce_bucket_size=bucket,
        dtype=str(dtype).removeprefix("torch."),
    )
    # transformers does not partition a model with quantized weights (is_deepspeed_zero3_enabled() and not is_quantized)
    cut = stage == 3 and not any(getattr(m, "quant_state", None) is not None for m in model.modules())
    weights = _partitioned(model, ranks, on_card=not everything) if cut else bytes_of(model)
    # The host has the gradients in float32 too, and 16 bits of updated weights (stages 1 and 2) or of gradients (3).
    # What goes to nvme passes through host memory in buffers of a fixed size.
    host = (MASTER + dtype.itemsize) * share if optimizer_on == "cpu" else 0
    host += sum(p.numel() * p.element_size() for p in model.parameters()) // ranks if weights_on == "cpu" else 0
    return Shares(
        weights=weights,
        updated=trained(model),
        pieces=() if cut else pieces_of(model),
        unpacked=unpacked(model),
        optimizer=0 if offload else STATES * share,
        host=host,
        buffers=buckets + (kept_gathered(model, how) if cut else 0) + (_sent(model) if offload and stage < 3 else 0),
        wrap=partial(_during, cut=cut, ranks=ranks, how=how, kept=accumulating or offload) if stage >= 2 else None,
        between=share * dtype.itemsize if accumulating and stage >= 2 and not offload else 0,
        passing={} if offload else _converted(share if stage < 3 else min(share, GROUP), dtype.itemsize),
        assumptions=_said(stage, offload, ranks),
    )


def _converted(numbers: int, width: int) -> dict[str, int]:
    """Return the bytes that an update makes of gradients: one flat copy of them, and one of that in float32.

    Stages 1 and 2 make them of one rank's gradients at once, stage 3 of a group at a time. Source: step() in
    stage_1_and_2.py, _prepare_fp32_grad_for_sub_group in stage3.py.
    """
    return {"flat gradients": width * numbers, "gradients in float32": UPDATED * numbers}


def _sent(model: nn.Module) -> int:
    """Return the bytes of temp_grad_buffer_for_gpu_offload, through which stages 1 and 2 send gradients to the host."""
    return max((p.numel() * p.element_size() for p in model.parameters() if p.requires_grad), default=0)


def _said(stage: int, offload: bool, ranks: int) -> tuple[str, ...]:
    said = [
        "DeepSpeed keeps float32 copies of the trained weights and two moments beside the 16-bit weights; an optimizer "
        "other than Adam is counted as Adam."
    ]
    if stage == 3:
        said.append(
            "ZeRO-3 keeps gathered what it uses again within stage3_max_reuse_distance, the last layers at the loss: "
            "that is counted all through the step."
        )
    if offload:
        said.append(f"Host memory is that of one rank; {ranks} of them share the computer's.")
    return tuple(said)


def _hidden(model: Any) -> int:
    config = getattr(model, "config", None)
    text = getattr(config, "get_text_config", lambda: config)()
    return int(getattr(text, "hidden_size", None) or getattr(text, "d_model", None) or 1024)


def bucket_size(model: nn.Module, how: Mapping[str, Any]) -> int:
    """Return how many gradients are reduced at once."""
    asked = how.get("reduce_bucket_size", 500_000_000)
    return _hidden(model) ** 2 if asked == "auto" else int(asked)


def persistent(model: nn.Module, how: Mapping[str, Any]) -> int:
    """Return up to how many numbers a weight has that stage 3 leaves gathered."""
    asked = how.get("stage3_param_persistence_threshold", 100_000)
    return PERSISTENT * _hidden(model) if asked == "auto" else int(asked)


def _partitioned(model: nn.Module, ranks: int, *, on_card: bool) -> int:
    """Return the bytes of one rank's weights; buffers are not partitioned."""
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    if not on_card:
        return buffers
    return buffers + sum(-(-p.numel() // ranks) * p.element_size() for p in model.parameters())


def kept_gathered(model: nn.Module, how: Mapping[str, Any]) -> int:
    """Return the bytes of weights that stay gathered: small ones, those prefetched, those soon used again.

    At the turn from forward to backward a weight is used again after twice the weights behind it.
    """
    hidden, threshold = _hidden(model), persistent(model, how)
    asked = how.get("stage3_prefetch_bucket_size", 50_000_000)
    prefetched = PREFETCHED * hidden**2 if asked == "auto" else int(asked)
    again = int(how.get("stage3_max_reuse_distance", REUSED)) // 2
    width = max((p.element_size() for p in model.parameters() if p.requires_grad), default=2)
    large = sum(p.numel() for p in model.parameters() if p.numel() > threshold)
    small = sum(p.numel() for p in model.parameters() if p.numel() <= threshold)
    return int(width * (min(large, prefetched + again) + small))


def _during(model: nn.Module, recorder: Recorder, *, cut: bool, ranks: int, how: Mapping[str, Any], kept: bool) -> None:
    """Add to a traced step what ZeRO does in it: reduced gradients leave, gathered weights come and go."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(_reduced, recorder, ranks, kept))
    if cut:
        _gather(model, recorder, persistent(model, how))


def _reduced(recorder: Recorder, ranks: int, kept: bool, parameter: torch.Tensor) -> None:
    """Keep one rank's share of a gradient that has gone into the bucket, where there is no place for it already."""
    parameter.grad = None
    if not kept:
        recorder.allocate(-(-parameter.numel() // ranks) * parameter.element_size(), "gradient")


def _gather(model: nn.Module, recorder: Recorder, threshold: int) -> None:
    """Gather the weights of each module that has some while it computes, forward and backward."""
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.numel() > threshold]
        size = sum(p.numel() * p.element_size() for p in own)
        if size:
            module.register_forward_pre_hook(partial(_come, recorder, size))
            module.register_forward_hook(partial(_go, recorder, size))


def _come(recorder: Recorder, size: int, module: Any, args: Any) -> None:
    # a layer that is computed again stops before its last module returns, whose weights are there for its gradient
    there = getattr(module, "_again", None)
    module._gathered = None if there else recorder.allocate(size, "gathered")


def _go(recorder: Recorder, size: int, module: Any, args: Any, out: Any) -> None:
    if module._gathered is not None:
        recorder.free(module._gathered, size)
    tensor = out if isinstance(out, torch.Tensor) else next((o for o in out if isinstance(o, torch.Tensor)), None)
    entered = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if tensor is None or not tensor.requires_grad:
        return
    goes_on = entered is not None and entered.requires_grad  # the tensors themselves would live on in the hooks

    again: list[int] = []
    if recorder.phase == "forward":
        module._again = again

    def back(gradient: torch.Tensor) -> None:
        again.append(recorder.allocate(size, "gathered"))
        if not goes_on:
            recorder.free(again.pop(), size)

    def done(gradient: torch.Tensor) -> None:
        if again:
            recorder.free(again.pop(), size)

    tensor.register_hook(back)
    if entered is not None and goes_on:
        entered.register_hook(done)

"""What ZeRO leaves on each GPU: shares of weights, gradients and optimizer state, and the buffers of its reductions."""

from __future__ import annotations

from typing import NamedTuple

from hf_efficient.memory.given import dtype_named, one_of, switch, whole

WEIGHT, GRADIENT = 2, 2
"""Bytes of a parameter and of its gradient in 16 bits, in which the passes compute."""
UPDATED = 4
"""Bytes of a gradient in float32, with which a weight is updated."""
MASTER = UPDATED + 12
"""Bytes of what updates it in float32: a gradient, the weight, and AdamW's two moments."""
GATHERED = 4
"""Bytes per parameter of the largest layer under stage 3: its weights and gradients in 16 bits, gathered."""


class ZeroStates(NamedTuple):
    """Bytes of one rank."""

    card: int
    host: int


def zero_states(
    params: int, trainable: int | None = None, *, stage: int, gpus: int, offload: str | None = None
) -> ZeroStates:
    """Return the bytes of weights, gradients and AdamW state of one rank in mixed precision with 16 bits.

    Stage 0 shares nothing, 1 the optimizer's state, 2 the gradients too, 3 the weights too. `offload`: `optimizer`
    updates on the host, `all` (stage 3) keeps the weights there too. What stage 3 gathers and the buckets come on top,
    and on the host DeepSpeed advises half as much again. Source: estimate_zero2_model_states_mem_needs in
    deepspeed/runtime/zero/stage_1_and_2.py, estimate_zero3_model_states_mem_needs in stage3.py.
    """
    params, gpus, stage = whole("params", params), whole("gpus", gpus), one_of("stage", stage, (0, 1, 2, 3))
    trained = params if trainable is None else whole("trainable", trainable, 0)
    if trained > params:
        raise ValueError(f"trainable={trained} is more than params={params}: count all parameters in params.")
    one_of(f"offload at stage {stage}", offload, (None, "optimizer", "all")[: {0: 1, 3: 3}.get(stage, 2)])
    weights = WEIGHT * params if stage < 3 else WEIGHT * params // gpus
    master = MASTER * trained if stage == 0 else MASTER * trained // gpus
    gradients = {0: GRADIENT * trained, 1: GRADIENT * trained, 2: GRADIENT * trained // gpus, 3: 0}[stage]
    if offload == "all":
        return ZeroStates(0, weights + master)
    if offload:
        return ZeroStates(weights + (gradients if stage == 1 else 0), master)
    return ZeroStates(weights + gradients + master, 0)


def zero3_states_gib(params: int, largest_layer_params: int, gpus: int) -> tuple[float, float, float]:
    """Return GiB of model states per GPU under ZeRO-3: weights and optimizer offloaded, optimizer offloaded, nothing.

    A lower bound: the largest layer is there whole, and further gathered weights, buckets, activations and logits are
    left out. Source: estimate_zero3_model_states_mem_needs in deepspeed/runtime/zero/stage3.py.
    """
    largest = whole("largest_layer_params", largest_layer_params)
    if largest > whole("params", params):
        raise ValueError(
            f"largest_layer_params={largest} is more than params={params}: a layer is a part of the model."
        )
    cards = [zero_states(params, stage=3, gpus=gpus, offload=offload).card for offload in ("all", "optimizer", None)]
    first, second, third = ((card + GATHERED * largest) / 2**30 for card in cards)
    return first, second, third


def bucket_bytes(
    stage: int, contiguous_gradients: bool, overlap_comm: bool, reduce_bucket_size: float, dtype: str
) -> int:
    """Return the bytes of the buffers into which DeepSpeed copies gradients to reduce them, on each rank.

    `reduce_bucket_size` counts elements, `dtype` is that of the reduction. Stages 1 and 2 have one buffer for gradients
    side by side and one more to overlap; stage 3 has one. They do not depend on the model, and what is flattened for a
    moment where gradients are not contiguous is not in them. Source: setup_buckets in
    deepspeed/runtime/zero/stage_1_and_2.py, __init__ in stage3.py.
    """
    size = whole("reduce_bucket_size", reduce_bucket_size) * dtype_named(dtype).itemsize
    contiguous = switch("contiguous_gradients", contiguous_gradients)
    overlapping = switch("overlap_comm", overlap_comm)
    if one_of("stage", stage, (0, 1, 2, 3)) == 0:
        return 0
    return size * (contiguous + (overlapping if stage < 3 else 0))

"""State of the optimizers of bitsandbytes and of torchao, by the rules in their sources: bytes of every storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hf_efficient.memory.record import Recorder, rounded
from hf_efficient.memory.weights import Weight

SMALLEST = 4096
"""Elements under which a tensor's state stays in full precision, in both packages."""
BLOCK = 256
"""Elements that share a scale: bitsandbytes 0.50, and what transformers asks of torchao for 8 and 4 bits alike."""
SMALLEST_PAGED = 100_000
"""Elements from which on bitsandbytes pages a tensor's state: Optimizer8bit.get_state_buffer."""
MAP = 1024
"""Bytes of a table of 256 float32 numbers, one for each code of 8 bits."""
MAP_OF_4_BITS = 64

BITSANDBYTES = {
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"), (1, 1)),
    **dict.fromkeys(("ademamix", "ademamix_8bit", "paged_ademamix_8bit", "paged_ademamix_32bit"), (2, 1)),
    **dict.fromkeys(("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"), (1,)),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit"), (1,)),
}
"""Name -> copies of the parameter in each of its states; AdEMAMix has both of its averages in the first."""
TORCHAO = {"adamw_torch_8bit": 8, "adamw_torch_4bit": 4}
"""Name -> bits of each of AdamW's two moments."""


class Held(NamedTuple):
    """Bytes of state, each storage rounded up as CUDA's allocator does."""

    card: int
    host: int = 0


def bitsandbytes_state(
    name: str, weights: Sequence[Weight], *, smallest: int = SMALLEST, embeddings_in_32: bool = True
) -> Held:
    """Return the state of a bitsandbytes optimizer: bytes or float32, with a float32 scale per block of 256 elements.

    Trainer keeps embeddings in 32 bits; bitsandbytes alone does not. Paged state of 100,000 elements or more is outside
    the card; its scales are not. Source: init_state and get_state_buffer in bitsandbytes/optim/optimizer.py and
    ademamix.py, Trainer.create_optimizer.
    """
    copies, quantises, paged = BITSANDBYTES[name], "8bit" in name, "paged" in name
    card = host = 0
    mapped = False
    for weight in weights:
        count = weight.numel
        small = not quantises or count < smallest or (weight.embedding and embeddings_in_32)
        states = sum(rounded(each * count * (4 if small else 1)) for each in copies)
        if paged and count >= SMALLEST_PAGED:
            host += states
        else:
            card += states
        if not small:
            mapped = True
            card += sum(rounded(each * -(-count // BLOCK) * 4) for each in copies)
    return Held(card + mapped * len(copies) * MAP, host)


def torchao_state(name: str, weights: Sequence[Weight], *, block: int = BLOCK) -> Held:
    """Return the state of torchao's AdamW: codes, a float32 scale per block, and a table per moment and tensor.

    A tensor of fewer than 4,096 elements or of no multiple of `block` has moments in its own dtype; embeddings are as
    all others. Source: _AdamBase._new_buffer in torchao/optim/adam.py, zeros of OptimState8bit and OptimState4bit.
    """
    bits, card = TORCHAO[name], 0
    for weight in weights:
        if quantised(weight, block):
            table = MAP if bits == 8 else MAP_OF_4_BITS
            card += 2 * sum(rounded(size) for size in (weight.numel * bits // 8, weight.numel // block * 4, table))
        else:
            card += 2 * rounded(weight.numel * weight.dtype.itemsize)
    return Held(card)


def quantised(weight: Weight, block: int = BLOCK) -> bool:
    """Return whether torchao quantises the state of `weight`."""
    return weight.numel >= SMALLEST and weight.numel % block == 0


def torchao_step(name: str, weights: Sequence[Weight], recorder: Recorder, *, block: int = BLOCK) -> None:
    """Record what torchao's compiled step makes in passing, one tensor after the other.

    Each moment is there once more in float32, scaled, before it becomes codes; at 4 bits the codes are unpacked to a
    byte each before, and are 64-bit integers after. Source: buffers in the code that torch 2.13's inductor makes of
    single_param_adam for a CPU; for a GPU it may fuse more.
    """
    sizes = {8: (4,), 4: (1, 4, 8)}[TORCHAO[name]]
    for count in {weight.numel for weight in weights if quantised(weight, block)}:
        passing = [(size * count) for size in (*sizes, *sizes)] + 2 * [count // block * 4]
        keys = [recorder.allocate(size, "") for size in passing]
        for key, size in zip(keys, passing, strict=True):
            recorder.free(key, size)


def keywords_of(name: str, keywords: dict[str, Any], options: dict[str, str]) -> dict[str, int]:
    """Return what of an optimizer's keywords and of its `optim_args` changes the size of its state."""
    if name in TORCHAO:
        return {"block": int(keywords.get("block_size", options.get("block_size", BLOCK)))}
    return {"smallest": int(keywords.get("min_8bit_size", SMALLEST))}

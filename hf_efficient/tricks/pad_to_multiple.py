"""Rows of a length that the hardware likes."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def pad_to_multiple(multiple: Annotated[int, AtLeast(1)] = 8) -> Trick:
    """Pad each batch to a multiple of `multiple` tokens, so that its matmuls run on Tensor Cores at full speed.

    fp16 and bf16 matmuls want dimensions in multiples of 8, on A100 and newer of 64. Use it wherever rows have unequal
    lengths; with compile it also keeps the number of different shapes, each of which compiles, small.

    Not for rows of one length that is such a multiple already, nor with packing, whose rows are full.

    Padding is masked and has no label: the training stays the same. Pass `make_collator(plan, tokenizer)` to Trainer or
    to the DataLoader; SFTConfig has a field for it.

    Published: no figure in our sources; NVIDIA's guide to matrix multiplication gives the multiples.
    """
    return Trick(
        family="padding",
        saves="time of 16-bit matmuls, and recompilations",
        costs=f"up to {multiple - 1} tokens of padding per row",
        numerics="exact",
        shows=("shapes",),
        sft={"pad_to_multiple_of": multiple},
        collator={"pad_to_multiple_of": multiple},
    )

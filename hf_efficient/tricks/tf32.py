"""fp32 matmuls on Tensor Cores."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import Need, Rounding, Trick


@spelled
def tf32() -> Trick:
    """Let what is left in float32 multiply on Tensor Cores, with 10 bits of mantissa instead of 23.

    One switch, no change of dtype anywhere, and the same exponent as float32. Use it on Ampere and newer beside bf16
    (for the matmuls outside autocast) or alone where 16 bits are too few.

    Not where float32 is there for its precision, such as solvers or losses that subtract large numbers, and not on
    cards before Ampere, which have no TF32.

    Published: memory 0; speed 2.25 x over strict fp32 on A100.
    """
    return Trick(
        family="matmul",
        saves="time of every fp32 matmul and convolution",
        costs="10 instead of 23 bits of mantissa in fp32 matmuls",
        numerics="close",
        shows=("matmul",),
        # TF32 has the 10-bit mantissa of float16; no card here to measure it, so the bound is float16's.
        within=Rounding("float16", 16),
        needs=(Need(capability=(8, 0), otherwise="Leave tf32 out: only Ampere and newer GPUs have it."),),
        trainer={"tf32": True},
        torch={"backends.fp32_precision": "tf32"},
    )

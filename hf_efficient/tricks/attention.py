"""The kernel that computes attention."""

from __future__ import annotations

from typing import Literal

from hf_efficient.spelling import spelled
from hf_efficient.trick import Need, Rounding, Trick

Implementation = Literal[
    "sdpa",
    "eager",
    "flash_attention_2",
    "flash_attention_3",
    "flex_attention",
    "kernels-community/flash-attn2",
    "kernels-community/vllm-flash-attn3",
]
_AMPERE = Need(
    capability=(8, 0),
    or_rocm=True,
    otherwise="Take attention('sdpa'): FlashAttention 2 is for Ampere and newer, or AMD GPUs.",
)
_NEEDS: dict[str, tuple[Need, ...]] = {
    "flash_attention_2": (
        _AMPERE,
        Need(
            package="flash-attn",
            otherwise="Run `pip install flash-attn --no-build-isolation`, or take "
            "attention('kernels-community/flash-attn2'), which is built already.",
        ),
    ),
    "flash_attention_3": (
        Need(capability=(9, 0), otherwise="Take attention('flash_attention_2'): FlashAttention 3 is for Hopper."),
        Need(
            package="flash-attn-3",
            otherwise="Build it from Dao-AILab/flash-attention/hopper, or take "
            "attention('kernels-community/vllm-flash-attn3'), which is built already.",
        ),
    ),
    "flex_attention": (
        Need(accelerator=True, otherwise="Take attention('sdpa'): on a CPU flex attention has no backward pass."),
    ),
    "kernels-community/flash-attn2": (
        _AMPERE,
        Need(package="kernels", otherwise="Run `pip install kernels`."),
    ),
    "kernels-community/vllm-flash-attn3": (
        Need(capability=(9, 0), otherwise="Take attention('kernels-community/flash-attn2') on cards before Hopper."),
        Need(package="kernels", otherwise="Run `pip install kernels`."),
    ),
}
"""What each implementation needs besides torch."""


@spelled
def attention(implementation: Implementation = "sdpa") -> Trick:
    """Choose the kernel that computes attention; all but `eager` never hold the whole matrix of scores.

    `sdpa` is torch's own: it takes FlashAttention or a memory-efficient kernel by itself, and falls back to one that
    holds the scores where a mask forces it to. `flash_attention_2` and `flash_attention_3` need their packages;
    `kernels-community/...` downloads a kernel that is built already. They compute in 16 bits, so they belong beside
    bf16 or fp16. `flex_attention` compiles a kernel for the mask, which pays for long packed rows. `eager` is plain
    matmuls, to compare with.

    Use it for long rows without padding or for packed rows (flash), or when a model's default is `eager`. It is an
    argument of from_pretrained: pass `model_keywords(plan)`.

    Not for short rows, where attention is a small part of a step, nor flash kernels without bf16 or fp16. Not every
    model has every kernel; transformers says so when it loads.

    Published: flash over eager: memory 0 with activation checkpointing, -35 % without; speed +23 to +39 %.
    """
    kernel = implementation not in ("sdpa", "eager", "flex_attention")
    return Trick(
        family="attention",
        saves="the matrix of attention scores, length x length per head",
        costs="nothing" if implementation != "eager" else "the matrix of attention scores in memory",
        numerics="close",
        shows=("attention",),
        # Measured 2026-11-30: 11.2 eps for eager, on a CPU (tests/test_promises.py prints it). Flash kernels could
        # not be run here; they compute in bfloat16, so their bound is that of the bf16 trick.
        within=Rounding("bfloat16", 16) if kernel else Rounding("float32", 48),
        needs=_NEEDS.get(implementation, ()),
        model={"attn_implementation": implementation},
    )

"""Matmuls in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.needs import AMPERE_OR_CPU
from hf_efficient.spelling import spelled
from hf_efficient.trick import Rounding, Trick

if TYPE_CHECKING:
    from hf_efficient.machine import Machine


@spelled
def bf16() -> Trick:
    """Run the matmuls in bfloat16 while weights, gradients and optimizer state stay in float32.

    bfloat16 has the exponent of float32, so nothing overflows and no loss scaling is needed. Use it wherever the
    hardware has it: Ampere and newer, and CPUs with avx512_bf16 or amx_bf16.

    Not on older GPUs, where it is emulated or refused (take fp16 there), nor for tiny models, where the casts cost
    more than the matmuls save. It asks `from_pretrained` for float32 weights: a checkpoint stored in bf16 would
    otherwise train without float32 master weights, where small updates are rounded away. Under zero the engine keeps
    the float32 master copy, computes with bfloat16 weights, and saves those.

    In a mixture of experts a rounded router may pick another expert: the gradient of one update was then 24 eps off.

    Published: memory about -7 % (weights stay fp32); speed 2.1 to 2.4 x over strict fp32 on V100 and A100, +6 % over
    tf32.
    """
    return Trick(
        family="precision",
        saves="half of the activations' bytes; matmuls run on Tensor Cores",
        costs="8 instead of 24 significant bits in the matmuls",
        numerics="close",
        shows=("dtypes",),
        # Measured 2026-11-30: 24 eps on a mixture of experts, whose router picks others when it is rounded, and at most
        # 3 elsewhere (docs/promises.md); 4.6 eps on a Llama after 30 updates (tests/test_promises.py prints it).
        within=Rounding("bfloat16", 32),
        needs=(AMPERE_OR_CPU,),
        trainer={"bf16": True},
        accelerator={"mixed_precision": "bf16"},
        model={"dtype": "float32"},
        advise=_advise,
    )


def _advise(machine: Machine) -> str:
    if machine.accelerator or machine.cpu_bf16:
        return ""
    return f"bf16: {machine.cpu or 'this CPU'} has no instructions for it and emulates it; float32 is faster here."

"""Matmuls in float16 with loss scaling."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import Need, Rounding, Trick


@spelled
def fp16() -> Trick:
    """Run the matmuls in float16 with dynamic loss scaling, while weights stay in float32.

    float16 has no room for small numbers: gradients below 6e-8 become zero. The loss is therefore multiplied by a
    large factor before the backward pass, the gradients are divided by it before clipping and update, and the factor
    is halved when something overflows (that update is skipped).

    Use it on cards with Tensor Cores but without bf16: V100, T4, RTX 20. Not on Ampere and newer (take bf16), not for
    models trained in bf16 whose activations overflow float16 (T5, Gemma), and not on a CPU, where the stack accepts
    the flag and silently trains in fp32. It asks `from_pretrained` for float32 weights: GradScaler refuses to unscale
    float16 gradients.

    Published: memory about -7 % (weights stay fp32); speed 2.1 to 2.4 x over strict fp32 on V100 and A100.
    """
    return Trick(
        family="precision",
        saves="half of the activations' bytes; matmuls run on Tensor Cores",
        costs="11 instead of 24 significant bits in the matmuls; an update is skipped now and then",
        numerics="close",
        shows=("dtypes",),
        # Measured 2026-11-29: 4.9 eps, plain torch.autocast and GradScaler on a CPU (tests/test_promises.py prints it).
        within=Rounding("float16", 16),
        needs=(
            Need(
                accelerator=True,
                otherwise="Use bf16, or no precision trick: on a CPU fp16 would be a silent fp32 run.",
            ),
        ),
        trainer={"fp16": True},
        accelerator={"mixed_precision": "fp16"},
        model={"dtype": "float32"},
    )

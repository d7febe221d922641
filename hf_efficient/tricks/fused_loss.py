"""The loss of a language model without its logits."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import FunctionCall, Need, Rounding, Trick

LOSS = {"fused_linear_cross_entropy": True}
LAYERS = ("rope", "rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy")
"""Liger's other kernels, by the keywords of its functions; each model takes those that it has."""


@spelled
def fused_loss(layers: bool = False) -> Trick:
    """Compute head and loss of a language model in one kernel, piece by piece, so that the logits never exist.

    Logits take tokens x vocabulary x 4 bytes, and their gradient as much again: with a vocabulary of 150,000 a batch of
    8,192 tokens has 5 GB of each, often the peak of the whole step. `layers=True` takes Liger's kernels for norms,
    rotary embedding and MLP as well.

    Use it for large vocabularies and long rows. In a loop `prepare_model` puts it in.

    Not on a CPU: Liger's kernels are Triton's. Not for models that Liger does not know (it says so and does
    nothing), and not for SFTTrainer, whose default loss never makes the logits either.

    Published: memory 0 to -61 %, growing with vocabulary x tokens; speed 0 to +31 %.
    """
    kernels = LOSS if layers else LOSS | dict.fromkeys(LAYERS, False)
    return Trick(
        family="loss",
        saves="the logits and their gradient: 8 bytes x tokens x vocabulary",
        costs="the logits are not returned; kernels compile at the first step",
        numerics="close",
        # Measured 2026-11-30: 5.7 eps in Triton's interpreter (tests/tricks/test_fused_loss.py prints it).
        within=Rounding("float32", 48),
        needs=(
            Need(package="liger-kernel", otherwise="Run `pip install 'hf-efficient[kernels]'`."),
            Need(
                capability=(7, 0),
                or_rocm=True,
                otherwise="Leave fused_loss out: Liger's kernels are Triton's, for Volta and newer or AMD GPUs.",
            ),
        ),
        heads=("causal_lm",),
        trainer={"use_liger_kernel": True, "liger_kernel_config": kernels},
        sft={"use_liger_kernel": False, "liger_kernel_config": None},
        prepare=FunctionCall("transformers.integrations.liger.apply_liger_kernel", {"kernel_config": kernels}),
        remarks={
            "sft": "fused_loss leaves use_liger_kernel off: SFTTrainer's default loss never makes the logits either."
        },
    )

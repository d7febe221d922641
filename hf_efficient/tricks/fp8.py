"""Matmuls in 8 bits."""

from __future__ import annotations

from hf_efficient.machine import Machine
from hf_efficient.needs import ADA_OR_CPU, TORCHAO
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick

AS_THE_LAUNCHER_SAYS_IT = {
    "ACCELERATE_MIXED_PRECISION": "fp8",
    "ACCELERATE_FP8_BACKEND": "AO",
    # On by default, it wraps the weights anew after the optimizer was made: outside FSDP2 the exchanged layers then
    # stay as they are, without a word (seen with accelerate 1.15 and torchao 0.18; tests/tricks/test_fp8.py).
    "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER": "false",
}
HARM = "Accelerate would convert the layers without a recipe and break"


@spelled
def fp8() -> Trick:
    """Run the matmuls of the inner layers in 8-bit floats, scaled per tensor, and the rest as bf16 does.

    torchao exchanges every Linear but the first and the last for a Float8Linear: e4m3 for activations and weights, e5m2
    for gradients; weights and optimizer state stay in float32. Use it for large matmuls on Hopper, Ada and newer GPUs,
    together with compile: without it the scaling costs more than the matmuls save.

    Not for hidden sizes below about 4096 or few tokens per batch (torchao measures 0.8 x at 1024x2048x1024 on an H100),
    nor with LoRA, where nothing of it was tried, nor under fsdp as it stands. Layers whose sides are no multiples of 16
    are left alone. A CPU computes the same values, slowly: to try a script out. TrainingArguments has no field for it,
    so the launcher's environment variables say it; they are taken back when the next plan is built. Name it in the
    plan, not to the launcher alone: accelerate's own defaults leave the exchanged layers untrained.

    Published: speed up to 1.5 x over bf16 for Llama-3-70B on 128 and more H100, 1.34 to 1.43 x with scaling per row,
    always compiled (torchao/float8/README.md and docs.pytorch.org/ao).
    """
    return Trick(
        family="precision",
        saves="half of bf16's time in large matmuls, at most",
        costs="3 (gradients: 2) significant bits after the leading one in the matmuls, and scaling",
        # Measured 2026-11-30: gradients 0.52 off, 2-layer Llama after 30 updates (tests/test_promises.py); no bound.
        numerics="different",
        shows=("layers",),
        heads=("linear_blocks",),
        needs=(TORCHAO, ADA_OR_CPU),
        trainer={"bf16": False, "fp16": False},
        insists={"bf16": HARM, "fp16": HARM},
        accelerator={"mixed_precision": "fp8"},
        env=AS_THE_LAUNCHER_SAYS_IT,
        launch={"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "enable_fsdp_float8_all_gather": False}},
        model={"dtype": "float32"},
        advise=_gain_nothing_on_a_cpu,
    )


def _gain_nothing_on_a_cpu(machine: Machine) -> str:
    return "" if machine.accelerator else "fp8: a CPU has no 8-bit matmuls and is slower with it; take bf16 here."

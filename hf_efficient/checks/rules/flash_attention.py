"""FlashAttention on cards and in dtypes for which it has no kernel, and 4-bit weights in another dtype than the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_places import capability_below, card, precision_of, without_gpu
from hf_efficient.checks.rules.precision_weights import is_quantized, loaded_by_trl, loaded_dtype
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.models import dtype
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

LEAST: Mapping[str, int] = {"flash_attention_2": 8, "flash_attention_3": 8, "flash_attention_4": 9}
"""The major compute capability from which on each has kernels (transformers 5.24, its matrix of compatibility)."""
KEY = "attn_implementation"
COMPUTE = "bnb_4bit_compute_dtype"


@check({"transformers": ">=5.0"}, seen="read source")
def flash_attention_needs_newer_card(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find FlashAttention on a card that it has no kernel for.

    Versions 2 and 3 need compute capability 8.0, version 4 needs 9.0. transformers refuses 3 and 4 while the model is
    loaded (modeling_utils.py, _flash_attn_import_error); version 2 loads, and the flash-attn package raises
    RuntimeError in the first forward: it supports Ampere cards and newer only. Not meant: AMD's cards and runs without
    a GPU.
    """
    which = model.text(KEY)
    rocm = setup.machine is not None and setup.machine.text("accelerator") in ("rocm", "xpu", "npu")
    least = LEAST.get(which)
    if least is None or rocm or without_gpu(setup) or not capability_below(setup.machine, least):
        return
    yield error(
        f'{KEY}="{which}" on {card(setup.machine)}',
        why=f"It needs compute capability {least}.0: "
        + ("the first forward raises RuntimeError." if which[-1] == "2" else "loading raises ImportError."),
        fix=f'Set {KEY}="sdpa" (torch\'s own, the default), or train on a card of capability {least}.0 or more.',
        at=model.where(KEY),
    )


@check({"transformers": ">=5.0"}, seen="read source")
def flash_attention_in_float32(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find FlashAttention for a model in float32 without autocast.

    Its kernels take float16 and bfloat16 only. transformers warns while it loads and casts queries to autocast's dtype;
    without autocast they stay float32 (integrations/flash_attention.py, get_target_dtype), and the kernel raises
    RuntimeError. Weights in float32 under bf16=True or fp16=True are right.
    """
    precision, which = precision_of(setup), model.text(KEY)
    own = setup.script is not None and bool(setup.script.named("autocast"))
    unknown = precision is None or own or is_quantized(model) or loaded_by_trl(setup)
    if which not in LEAST or unknown or setup.zero is not None or setup.fsdp is not None or without_gpu(setup):
        return
    if loaded_dtype(model) == "float32" and precision is not None and precision.value == "fp32":
        yield error(
            f'{KEY}="{which}" with a model in float32 and no mixed precision',
            why="The kernel takes float16 and bfloat16 only: the first forward raises RuntimeError.",
            fix=f'Train with bf16=True (fp16=True on a card below 8.0; mixed_precision="bf16" of Accelerator), or set'
            f' {KEY}="sdpa".',
            at=model.where(KEY),
        )


@check({"bitsandbytes": ">=0.43"}, seen="read source")
def four_bit_computes_in_float16_under_bf16(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find 4-bit weights that compute in float16 in a run in bf16.

    Linear4bit casts its input to bnb_4bit_compute_dtype and its output back (bitsandbytes/nn/modules.py, forward).
    bf16 has the range of fp32, float16 ends at 65504: what a model reaches in bf16 becomes inf, the loss nan, and no
    GradScaler watches. The other way round, bfloat16 in an fp16 run, loses digits only.
    """
    precision = precision_of(setup)
    if not model.on("load_in_4bit") or dtype(model.get(COMPUTE)) != "float16":
        return
    if precision is not None and precision.value == "bf16":
        yield warning(
            f"{COMPUTE}=float16 in a bf16 run ({precision.by})",
            why="Each 4-bit layer casts bf16 activations to float16, which ends at 65504: inf and nan, with no scaler.",
            fix=f"Set {COMPUTE}=torch.bfloat16; on a card below capability 8.0 train with fp16=True instead of bf16.",
            at=model.where(COMPUTE),
        )

"""Weights quantized by bitsandbytes: what engines do with them, and options that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_weights import has_adapters
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.models import dtype
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

BITS = ("load_in_4bit", "load_in_8bit")
SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
BYTES = {False: 0.5625, True: 0.516}
"""Per weight in 4 bits with a scale in fp32 for each 64, and with those scales in 8 bits for each 256 of them."""


def bits(model: Settings) -> str:
    """Return which flag is on, or an empty string."""
    return next((key for key in BITS if model.on(key)), "")


@check({"transformers": ">=4.30"}, seen="read source")
def quantized_weights_whole_on_every_rank(model: Settings, zero: Settings) -> Iterator[Finding]:
    """Find ZeRO stage 3 with a quantized model, whose weights it does not partition.

    transformers leaves zero.Init out for quantized models (modeling_utils.py, from_pretrained), so each rank loads and
    keeps all quantized weights: 0.5625 bytes per weight in 4 bits with blocks of 64, 0.516 with double quantization,
    about 1 in 8 bits, and embeddings, head and norms in the dtype of loading. What stage 3 costs in communication buys
    nothing for them. Not meant: ZeRO-2 and DDP, which partition no weights anyway.
    """
    flag = bits(model)
    if not flag or zero.get("stage") not in (3,):
        return
    each = BYTES[model.on("bnb_4bit_use_double_quant")] if flag == "load_in_4bit" else 1.0
    params = model.number("params")
    size = f", {params * each / 2**30:.1f} GiB for {params / 1e9:.3g} billion weights" if params > 0 else ""
    kind = "4-bit" if flag == "load_in_4bit" else "8-bit"
    yield warning(
        f"ZeRO stage 3 with a {kind} quantized model ({flag})",
        why=f"zero.Init is off for quantized models, so the weights are not partitioned: every rank holds the"
        f" full {kind} model, {each:g}"
        f" bytes per quantized weight{size}, plus embeddings, head and norms in the dtype of loading.",
        fix="Train the adapters with DDP or ZeRO-2 (zero_optimization.stage: 2), or shard with FSDP and"
        " bnb_4bit_quant_storage=torch.bfloat16, or use stage 3 without quantization.",
        at=model.where(flag),
    )


@check({"accelerate": ">=1.14", "torch": ">=2.7"}, seen="read source")
def fsdp_quantized_storage(model: Settings, fsdp: Settings) -> Iterator[Finding]:
    """Find FSDP with quantized weights that it cannot shard.

    bitsandbytes packs 4-bit weights into uint8 unless bnb_4bit_quant_storage names a floating dtype. FSDP2 leaves
    such weights out of sharding, so every rank holds all of them (accelerate/utils/fsdp_utils.py,
    fsdp2_prepare_model); FSDP1 refuses integer tensors ("Cannot flatten integer dtype tensors",
    torch/distributed/fsdp/_flat_param.py) and wants one dtype per unit, so the storage must be the dtype of loading.
    8-bit weights have no such option.
    """
    flag = bits(model)
    storage = model.get("bnb_4bit_quant_storage")
    known = None if storage is None else dtype(storage)
    version = fsdp.get("version", 2)
    if not flag or storage is UNKNOWN or (known is not UNKNOWN and known is not None and flag == BITS[0]):
        return
    first = version in (1, "1")
    tell = error if first else warning
    stored = "int8" if flag == BITS[1] else f"{storage or 'uint8, the default of bnb_4bit_quant_storage'}"
    yield tell(
        f"FSDP with {flag}=True, stored as {stored}",
        why="FSDP1 raises ValueError: it cannot flatten integer dtype tensors."
        if first
        else "The quantized weights are left out of sharding: every rank holds all of them.",
        fix="Set bnb_4bit_quant_storage to the dtype of loading, torch.bfloat16 (with"
        " bnb_4bit_compute_dtype=torch.bfloat16)"
        f"{'' if flag == BITS[0] else ', with load_in_4bit=True'}, or train with DDP.",
        at=model.where(flag),
    )


@check({"transformers": ">=4.40"}, seen="read source")
def quantized_without_adapters(setup: Setup, model: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find a quantized model that is given to Trainer without adapters.

    Quantized weights cannot be trained: Trainer raises ValueError for such a model without adapters (trainer_utils.py,
    validate_quantization_for_training).
    """
    flag = bits(model)
    unseen = setup.script is not None and (model.open or "dequantize" in setup.script.source)
    if flag and not has_adapters(setup) and not unseen:
        yield error(
            f"{flag}=True without adapters",
            why="Trainer raises ValueError when it is made: purely quantized models cannot be fine-tuned.",
            fix="Add adapters: get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(...)), or"
            " peft_config=LoraConfig(...) of"
            " SFTTrainer; or load in bfloat16 or float32 for full fine-tuning.",
            at=model.where(flag),
        )


@check({"transformers": ">=4.30"}, seen="ran on CPU")
def both_quantizations(model: Settings) -> Iterator[Finding]:
    """Find load_in_4bit and load_in_8bit together.

    BitsAndBytesConfig raises ValueError: only one can be used at a time (transformers/utils/quantization_config.py).
    """
    if all(model.on(key) for key in BITS):
        yield error(
            "load_in_4bit=True and load_in_8bit=True",
            why="BitsAndBytesConfig raises ValueError: only one of them can be used.",
            fix="Keep load_in_4bit=True for QLoRA, or load_in_8bit=True.",
            at=model.where("load_in_8bit"),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def four_bit_options_without_load_in_4bit(model: Settings) -> Iterator[Finding]:
    """Find options of 4-bit quantization without load_in_4bit.

    With load_in_8bit they have no effect. With neither flag transformers 5 quantizes to 4 bits all the same
    (quantizers/auto.py takes a BitsAndBytesConfig without load_in_8bit for a 4-bit one), so load_in_4bit=False does not
    turn quantization off; leaving quantization_config out does.
    """
    options = [key for key in model if key.startswith("bnb_4bit_")]
    if model.text("quantization") not in ("BitsAndBytesConfig", "") or not options or not model.off("load_in_4bit"):
        return
    if model.on("load_in_8bit"):
        yield info(
            f"{', '.join(options)} with load_in_8bit=True",
            why="Options of 4-bit quantization have no effect on an 8-bit model.",
            fix="Remove them, or write load_in_4bit=True instead of load_in_8bit=True.",
            at=model.where(options[0]),
        )
    elif model.text("quantization") and model.off("load_in_8bit"):
        yield info(
            f"BitsAndBytesConfig with {', '.join(options)} and neither load_in_4bit nor load_in_8bit",
            why="transformers quantizes to 4 bits all the same, in silence.",
            fix="Write load_in_4bit=True if that is meant; leave quantization_config out if it is not.",
            at=model.where(options[0]),
        )


@check({"bitsandbytes": ">=0.43"}, seen="read source")
def four_bit_computes_in_float32(model: Settings) -> Iterator[Finding]:
    """Find 4-bit weights that compute in float32, because nothing else was said.

    BitsAndBytesConfig passes float32 on where bnb_4bit_compute_dtype is left out, and Linear4bit keeps to what it is
    passed (bitsandbytes/nn/modules.py), so weights are dequantized to float32 and the products of the backward pass,
    which autocast does not reach, run in it.
    """
    key = "bnb_4bit_compute_dtype"
    if model.text("quantization") == "BitsAndBytesConfig" and model.on("load_in_4bit") and model.get(key) is None:
        yield info(
            f"load_in_4bit=True without {key}, which means float32",
            why="Weights are dequantized to float32 and the backward pass multiplies in it: slower than bf16 or fp16.",
            fix=f"Set {key}=torch.bfloat16 on a card of compute capability 8.0 or more, torch.float16 on an older one.",
            at=model.where("load_in_4bit"),
        )


@check({"accelerate": ">=0.20"}, seen="read source")
def device_map_in_several_processes(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find a model spread over the GPUs by device_map while several processes train.

    device_map="auto" and its kin spread the layers over all GPUs that a process sees; with several processes
    accelerate raises ValueError for a model on more than one device (accelerator.py, prepare_model: "You can't train
    a model that has been loaded with device_map='auto' in any distributed mode"). A device per process is what is
    meant there.
    """
    placed: Any = model.get("device_map")
    if (setup.processes or 0) > 1 and isinstance(placed, str) and placed in SPREAD:
        machine = setup.machine or NOTHING
        if machine.get("gpus") == 1:
            return
        yield error(
            f'device_map="{placed}" with {setup.processes} processes',
            why="Each process would spread the model over all GPUs; accelerate raises ValueError in any"
            " distributed mode.",
            fix='Leave device_map out (quantized models: device_map={"": PartialState().local_process_index}), or'
            " start one process"
            " with python; to share one model among GPUs use FSDP or ZeRO-3.",
            at=model.where("device_map"),
        )

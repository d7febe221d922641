"""Mistakes in the dtype of the weights that are trained: halves under a gradient scaler, no fp32 master weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_places import precision_of
from hf_efficient.finding import Finding, Place, error, warning
from hf_efficient.reading.models import dtype
from hf_efficient.reading.script import Call
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

HALVES = ("float16", "bfloat16")
HEADS = {"SEQ_CLS": "classifier or score", "TOKEN_CLS": "classifier or score", "QUESTION_ANS": "qa_outputs"}
"""What PEFT adds to modules_to_save by itself (peft 0.21.2, peft_model.py)."""
KEEPS_PRECISION = ("kahan", "stochastic", "anyprecision", "stable_adamw")
"""Optimizers, and their options, that make up for the rounding of bf16 weights."""
FOUND_IN = ("get_peft_model", "add_adapter", "PeftModel.from_pretrained", "inject_adapter_in_model")


def loaded_dtype(model: Settings) -> Any:
    """Return the dtype of the weights before any adapter: as loaded, or as cast by the script."""
    cast = dtype(model.get("cast_dtype")) if model.said("cast_dtype") else None
    return dtype(model.get("load_dtype")) if cast is None else cast


def loaded_by_trl(setup: Setup) -> bool:
    """Does a trainer of TRL load the model by its name? It asks for float32 where model_init_kwargs give no dtype."""
    model = setup.model or NOTHING
    return setup.sft is not None and not model.text("class") and "load_dtype" not in model.places and "name" in model


def is_quantized(model: Settings) -> bool:
    """Are the weights quantized, or may they be?"""
    keys = ("load_in_4bit", "load_in_8bit", "quantization", "quantization_config")
    stored = model.said("config.quantization_config")
    return model.open or stored or any(model.said(key) and not model.off(key) for key in keys)


def has_adapters(setup: Setup) -> bool:
    """Are there adapters, so that the base is frozen, or may there be?"""
    script = setup.script
    passed = script is not None and (
        bool(script.named(*FOUND_IN)) or any("peft_config" in call.keywords for call in script.calls)
    )
    return setup.peft is not None or passed


def raised_again(setup: Setup) -> bool:
    """Does the script cast parameters one by one, so that reading cannot know which dtype they end in?"""
    calls = setup.script.calls if setup.script is not None else []
    words = ("float", "to", "type", "cast_mixed_precision_params")
    walks = (".parameters(", ".named_parameters(", ".modules(", ".named_modules(", ".children(")
    for call in calls:
        loops = [ast.unparse(loop.iter) for loop in call.loops if isinstance(loop, ast.For)]
        if call.method == words[-1] or (call.method in words and any(w in text for text in loops for w in walks)):
            return True
    return False


def _scaler(setup: Setup) -> tuple[str, Place] | None:
    """Return what puts a GradScaler over the gradients: fp16 of Trainer or Accelerator, or the script's own."""
    owner = setup.trainer if setup.trainer is not None else setup.accelerator
    cpu = setup.trainer is not None and setup.trainer.on("use_cpu")
    if setup.zero is not None or setup.fsdp is not None or cpu:
        return None
    precision = precision_of(setup)
    if owner is not None and precision is not None and precision.value == "fp16":
        return precision.by, precision.place
    for call in setup.script.named("GradScaler") if setup.script is not None else []:
        if call.keywords.get("enabled", True) is True and owner is None:
            return "GradScaler in the script", call.place
    return None


def _halves(setup: Setup, model: Settings) -> tuple[str, str, str] | None:
    """Return which trainable parameters are fp16 or bf16, the dtype, and the cure; None where none is known to be."""
    loaded, peft = loaded_dtype(model), setup.peft
    if one_by_one := _lowered(setup):
        return one_by_one
    if not has_adapters(setup):
        named = "every weight of the model" if loaded in HALVES and not is_quantized(model) else ""
        return (named, str(loaded), "load it with dtype=torch.float32 in from_pretrained") if named else None
    if peft is None:
        return None
    return _cast_afterwards(setup, model) or _adapters(setup, model, peft, loaded)


def _cast_afterwards(setup: Setup, model: Settings) -> tuple[str, str, str] | None:
    """Return adapters that were made and then cast together with the model."""
    cast = dtype(model.get("cast_dtype")) if model.said("cast_dtype") else None
    made = setup.script.named("get_peft_model", "add_adapter") if setup.script is not None else []
    if cast in HALVES and made and all(_comes_after(setup, model.where("cast_dtype"), call) for call in made):
        how = "cast the model before get_peft_model, which then makes the adapters float32, and not after it"
        return "the adapters, cast with the whole model after get_peft_model,", str(cast), how
    return None


def _lowered(setup: Setup) -> tuple[str, str, str] | None:
    """Return parameters that a loop over the model's casts to half, one by one; None where it chooses unknown ones."""
    for call in setup.script.calls if setup.script is not None else []:
        kind = {"half": "float16", "bfloat16": "bfloat16"}.get(call.method)
        over = [ast.unparse(loop.iter) for loop in call.loops if isinstance(loop, ast.For)]
        chosen = all("lora" in guard.lower() or guard.endswith("requires_grad") for guard in call.guards)
        if kind and chosen and not call.args and any("parameters(" in text for text in over):
            which = f"the parameters that line {call.place.line} casts one by one"
            return which, kind, "leave out that cast of what has requires_grad"
    return None


def _comes_after(setup: Setup, place: Place, call: Call) -> bool:
    """Does a cast at that place act on what the call makes? In one line: is it called on the call's result?"""
    casts = [
        one for one in (setup.script.calls if setup.script else []) if one.place == place and one.node != call.node
    ]
    return place.line > call.place.line or any(call.node in ast.walk(one.node.func) for one in casts)


def _adapters(setup: Setup, model: Settings, peft: Settings, loaded: Any) -> tuple[str, str, str] | None:
    if is_quantized(model):
        sure = setup.sft is not None and (model.on("load_in_4bit") or model.on("load_in_8bit"))
        back = "for p in trainer.model.parameters(): if p.requires_grad: p.data = p.data.float()"
        how = f"cast them back to float32 once SFTTrainer is made ({back}), or use transformers' Trainer"
        return ("the adapters, which SFTTrainer casts where the base is quantized,", "bfloat16", how) if sure else None
    if loaded not in HALVES or model.said("cast_dtype") or peft.get("prepared_for_kbit") is not None:
        return None
    if peft.get("autocast_adapter_dtype") is False:
        how = "leave autocast_adapter_dtype at True, PEFT's default, which makes adapters float32"
        return "the adapters (autocast_adapter_dtype=False)", str(loaded), how
    saved, task = peft.get("modules_to_save"), peft.text("task_type").rpartition(".")[2]
    names = [str(name) for name in saved] if isinstance(saved, list) and UNKNOWN not in saved else []
    named = ", ".join(names) or HEADS.get(task, "")
    if named:
        how = "load the model with dtype=torch.float32, or cast what has requires_grad to torch.float32 afterwards"
        why = f"the copies in modules_to_save ({named}), which PEFT leaves in the dtype of the base,"
        return why, str(loaded), how
    return None


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def half_precision_parameters_under_grad_scaler(setup: Setup) -> Iterator[Finding]:
    """Find trainable parameters in fp16 or bf16 while fp16 mixed precision scales the gradients.

    Gradients have the dtype of their parameters. torch.amp.GradScaler refuses those in fp16 ("Attempting to unscale
    FP16 gradients", torch/amp/grad_scaler.py, _unscale_grads_) and its CUDA kernel has no bf16 ("not implemented for
    'BFloat16'", seen in reports up to torch 2.11), so the first optimizer step fails. transformers 5 loads a
    checkpoint in the dtype it was saved in where no dtype is given. A frozen base may stay in fp16: PEFT makes
    adapters and trainable_token_indices float32, but not the copies of modules_to_save, nor the heads it saves by
    itself for SEQ_CLS, TOKEN_CLS and QUESTION_ANS, nor anything with autocast_adapter_dtype=False
    (peft/tuners/tuners_utils.py, cast_adapter_dtype). DeepSpeed keeps fp32 master weights of its own and accelerate
    raises the parameters under FSDP, so neither is meant.
    """
    scaler, model = _scaler(setup), setup.model
    if scaler is None or model is None or raised_again(setup) or loaded_by_trl(setup):
        return
    halves = _halves(setup, model)
    if halves is None:
        return
    which, kind, how = halves
    kept = (
        "Attempting to unscale FP16 gradients" if kind == "float16" else "unscaling is not implemented for 'BFloat16'"
    )
    yield error(
        f"fp16 mixed precision ({scaler[0]}) trains {which} in {kind}",
        why=f"The gradients are {kind} then, and GradScaler fails at the first step: {kept}. Every trainable"
        f" parameter must be"
        " float32 (fp32) under fp16 AMP; a frozen base may stay fp16.",
        fix=f"To train in fp16, {how}; or train in bf16 ({_in_bf16(setup)}) on a card of compute capability"
        f" 8.0 or more.",
        at=scaler[1],
    )


def _in_bf16(setup: Setup) -> str:
    if setup.trainer is not None:
        return "bf16=True and fp16=False"
    return (
        'mixed_precision="bf16"' if setup.accelerator is not None else "autocast(dtype=torch.bfloat16), no GradScaler"
    )


@check({"transformers": ">=5.0"}, seen="arithmetic")
def bf16_weights_without_fp32_masters(setup: Setup) -> Iterator[Finding]:
    """Find a model that is trained in full in bf16 weights, with no fp32 master weights.

    transformers 5 keeps the checkpoint's dtype where from_pretrained is given none, so a bf16 checkpoint trains in
    bf16: weights, gradients and Adam's moments take 2 + 2 + 4 = 8 bytes per parameter instead of 4 + 4 + 8 = 16, and
    bf16=True does not change that: autocast lowers the operations, it keeps no copy. bf16 has 8 bits of precision, so
    an update below about 1/256 of its weight is rounded away, and with small learning rates most are. Adapters on a
    frozen base are not meant; nor is DeepSpeed, whose ZeRO optimizer holds fp32 masters, nor FSDP with mixed
    precision, where accelerate raises trainable parameters to float32 (accelerate/utils/fsdp_utils.py), nor
    optimizers with Kahan summation or stochastic rounding.
    """
    model, precision = setup.model, precision_of(setup)
    if model is None or loaded_dtype(model) not in HALVES[1:] or not _trains(setup) or _masters(setup):
        return
    unknown = raised_again(setup) or loaded_by_trl(setup) or _arguments_alone(setup)
    if has_adapters(setup) or is_quantized(model) or unknown or model.on("frozen"):
        return
    if (precision is None and setup.fsdp is not None) or _scaler(setup) is not None:
        return
    params = model.number("params")
    size = f" ({params * 8 / 2**30:.1f} GiB instead of {params * 16 / 2**30:.1f} GiB here)" if params > 0 else ""
    yield warning(
        "All weights are trained in bfloat16 (bf16), without fp32 master weights",
        why="Where no dtype is given, transformers 5 loads the checkpoint's. With AdamW that is 8 bytes per"
        " parameter (2 weights"
        f" + 2 gradients + 4 moments) instead of 16 (4 + 4 + 8){size}, but bf16 keeps 8 bits, so updates below"
        f" about 1/256 of a"
        " weight are rounded away. bf16=True keeps no copy in fp32.",
        fix="Pass dtype=torch.float32 to from_pretrained and keep bf16=True (fp32 master weights under"
        " autocast); where memory"
        " forbids that, use LoRA, or DeepSpeed or FSDP with mixed precision, which keep fp32 masters.",
        at=model.where("cast_dtype" if model.said("cast_dtype") else "load_dtype"),
    )


def _trains(setup: Setup) -> bool:
    """Does the run train?"""
    script = setup.script
    loop = script is not None and bool(script.training_loops)
    return setup.trainer is not None or setup.accelerator is not None or loop


def _arguments_alone(setup: Setup) -> bool:
    """Are arguments of a file all that is known, so that any engine may run them?"""
    told, model = (setup.script, setup.launch, setup.launcher, setup.processes), setup.model or NOTHING
    return all(one is None for one in told) and not any(model.said(key) for key in ("class", "config", "params"))


def _masters(setup: Setup) -> bool:
    """Does something keep fp32 masters, or make up for their absence, or may it?"""
    if setup.zero is not None:
        return not (setup.deepspeed or NOTHING).on("bf16.bf16_master_weights_and_grads")
    precision = precision_of(setup)
    if setup.fsdp is not None and (precision is None or precision.value not in ("fp32",)):
        return True
    trainer, optimizer = setup.trainer or NOTHING, setup.optimizer or NOTHING
    said = " ".join(str(one) for one in (trainer.get("optim"), trainer.get("optim_args"), optimizer.values)).lower()
    return ((trainer.said("optim") or trainer.open) and not trainer.knows("optim")) or any(
        word in said for word in KEEPS_PRECISION
    )

"""Which trainable parameters are fp16 or bf16, once the model is loaded, adapted and cast as the run does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.doctor.probe_answer import Answer, NotProbedError, some
from hf_efficient.doctor.probe_steps import apply, steps
from hf_efficient.doctor.probe_subject import Subject
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.settings import NOTHING
from hf_efficient.reading.setup import Setup

HALVES = ("float16", "bfloat16")


def dtypes(subject: Subject) -> Iterator[Answer]:
    """Yield which trainable parameters have 16 bits, an error where GradScaler is to unscale their gradients."""
    setup = subject.setup
    if setup.zero is not None or setup.fsdp is not None:
        return  # these keep float32 copies of their own
    knob = setup.effective.get("precision")
    precision = knob.value if knob is not None and isinstance(knob.value, str) else ""
    loaded = (setup.model or NOTHING).text("load_dtype")
    if loaded not in (*HALVES, "float32") or (setup.sft is not None and not (setup.model or NOTHING).said("class")):
        return  # nobody knows in what it is loaded, or TRL loads it, in a dtype of its own choice
    todo = [step for step in steps(setup) if step.what in ("peft", "cast", "kbit")]
    model = subject.tiny(**_keywords(setup, loaded))
    for step in todo:
        model = apply(model, step, setup)
    quantized = bool(getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False))
    if setup.sft is not None and setup.peft is not None and quantized:
        _as_trl(model)
        if precision != "fp16":
            return  # TRL wants its adapters in bf16 there
    kinds = {name: _short(p) for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
    small = {name: kind for name, kind in kinds.items() if kind in HALVES}
    at = (setup.peft or NOTHING).place if setup.peft is not None else (setup.model or NOTHING).where("load_dtype")
    if small:
        yield Answer(_finding(subject, small, of=len(kinds), precision=precision, at=at), "dtypes", True)
    elif kinds:
        yield Answer(_fine(subject, len(kinds), at), "dtypes", False)


def _keywords(setup: Setup, loaded: str) -> dict[str, Any]:
    """Return the keywords of from_pretrained that decide dtypes."""
    import importlib.util

    import torch
    from transformers import BitsAndBytesConfig

    model = setup.model or NOTHING
    bits = next((name for name in ("load_in_4bit", "load_in_8bit") if model.on(name)), "")
    if bits and importlib.util.find_spec("bitsandbytes") is None:
        raise NotProbedError(f"{bits} needs bitsandbytes, which is not installed here")
    quantized = {"quantization_config": BitsAndBytesConfig(**{bits: True})} if bits else {}
    return {} if loaded == "float32" and not bits else {"dtype": getattr(torch, loaded), **quantized}


def _as_trl(model: Any) -> None:
    """Cast what is trained as SFTTrainer does for adapters on quantized weights."""
    import torch

    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_magnitude_vector" not in name:
            parameter.data = parameter.data.to(torch.bfloat16)


def _short(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _finding(subject: Subject, small: dict[str, str], *, of: int, precision: str, at: Place) -> Finding:
    adapted = subject.setup.peft is not None
    kinds = " and ".join(sorted(set(small.values())))
    what = f"Probed on {subject.said}: {len(small)} of {of} trainable parameters are {kinds}: {some(small)}"
    cure = (
        "Leave autocast_adapter_dtype=True (PEFT's default) and cast nothing after get_peft_model, or cast what is "
        "trained: `for p in model.parameters(): p.data = p.data.float() if p.requires_grad else p.data`."
        if adapted
        else "Load with from_pretrained(..., dtype=torch.float32): autocast computes in 16 bits all the same."
    )
    if precision == "fp16":
        why = "Under fp16 AMP, GradScaler refuses them at the first step: `Attempting to unscale FP16 gradients.`"
        if set(small.values()) == {"bfloat16"}:
            why = "fp16 AMP and its GradScaler are made for float32 parameters: bf16 gradients cannot be unscaled."
        return error(what, why=why, fix=f"{cure} On a card with bf16, bf16=True needs no GradScaler.", at=at).coded(
            "probe-trainable-dtype"
        )
    level = info if adapted and set(small.values()) == {"bfloat16"} else warning
    return level(
        what,
        why="The optimizer then updates rounded weights without float32 master copies: updates smaller than the "
        f"rounding ({'2^-8' if 'bfloat16' in small.values() else '2^-11'} of a weight) are lost.",
        fix=cure,
        at=at,
    ).coded("probe-trainable-dtype")


def _fine(subject: Subject, number: int, at: Place) -> Finding:
    return info(
        f"Probed: fine. All {number} trainable parameters of {subject.said} are float32",
        why="Autocast, GradScaler and the optimizer all work on float32 parameters as they should.",
        fix="Nothing has to be changed.",
        at=at,
    ).coded("probe-trainable-dtype")

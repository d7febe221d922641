"""Configuration and plan -> the model that would train, without data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_efficient.emit.head import require_head
from hf_efficient.emit.model import add_adapter
from hf_efficient.memory.build import dtype_of, named_dtype, on_meta, without_data
from hf_efficient.memory.fused_loss import fuse_loss
from hf_efficient.memory.quantize import quantized
from hf_efficient.memory.reading import Run
from hf_efficient.plan import Plan
from hf_efficient.promises.tiny import head_class, load_config
from hf_efficient.wording import one_sentence

EAGER = "eager"


def assemble(
    plan: Plan, run: Run, model: Any, *, prepared_for_kbit: bool = False, said: list[str] | None = None
) -> nn.Module:
    """Return the model that would train, on meta tensors: loaded, quantized, with its adapter and checkpointing.

    `model`: a Hub id, a folder, a configuration, or a module of yours, which is copied without its data. What is
    assumed is added to `said`. Raises ValueError for a configuration that no model of transformers can be built from.
    """
    if isinstance(model, nn.Module):
        built = without_data(model)
    else:
        config = load_config(str(model)) if isinstance(model, (str, Path)) else model
        if not hasattr(config, "model_type"):
            raise ValueError(f"{config!r} is no model: pass a Hub id, a folder, a configuration or a module.")
        if said is not None and run.dtype in (None, "auto") and not named_dtype(config):
            said.append("The configuration names no dtype: float32 is taken, and the checkpoint may have fewer bits.")
        built = _built(copy.deepcopy(config), run)
    if prepared_for_kbit:
        built = _prepared(built)
    if hasattr(built, "config"):
        # As Trainer does, which reaches no deeper: T5's decoder has its own configuration, and keeps keys and values.
        built.config.use_cache = False  # type: ignore[union-attr]
    if run.kernels.get("fused_linear_cross_entropy"):
        require_head(plan, built)
        fuse_loss(built)
    if plan["peft"]:
        with torch.device("meta"):
            built = add_adapter(plan, built)
    if run.checkpointing is not None:
        _checkpoint(built, run.checkpointing)
    return built.train()


def _built(config: Any, run: Run) -> nn.Module:
    kind: Any = head_class(config)
    attention = run.attention or getattr(config, "_attn_implementation_internal", None)
    dtype = dtype_of(run.dtype, config)
    for part in (config, getattr(config, "get_text_config", lambda: config)()):
        setattr(part, "dtype" if hasattr(type(part), "dtype") or hasattr(part, "dtype") else "torch_dtype", dtype)
    with suppress(AttributeError):
        config.pad_token_id = config.pad_token_id if config.pad_token_id is not None else 0
    try:
        with on_meta(dtype):
            model = _from_config(kind, config, EAGER if attention == EAGER else None)
    except Exception as error:  # whatever a class makes of a configuration without what it needs
        raise ValueError(
            f"{kind.__name__} cannot be built from this configuration: {one_sentence(error)[:300]}; give it the fields "
            "that this architecture needs."
        ) from None
    _keep_in_float32(model, dtype)
    if run.flash:
        for part in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
            part._attn_implementation_internal = "flash_attention_2"
    return quantized(model, run.quantization, dtype) if run.quantization else model


def _from_config(kind: Any, config: Any, attention: str | None) -> Any:
    keywords = {"attn_implementation": attention} if attention else {}
    if not attention and getattr(config, "_attn_implementation_internal", None) not in (None, "eager", "sdpa"):
        config._attn_implementation_internal = None
    return kind._from_config(config, **keywords)


def _keep_in_float32(model: Any, dtype: torch.dtype) -> None:
    """Give float32 to the weights that `from_pretrained` never loads in 16 bits."""
    names = list(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        names += list(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        if any(part in names for part in name.split(".")):
            parameter.data = parameter.data.float()


def _prepared(model: nn.Module) -> nn.Module:
    if not getattr(model, "is_loaded_in_4bit", False):
        raise ValueError(
            "prepare_model_for_kbit_training is for weights in 4 bits, and these are not: add qlora to the plan."
        )
    from peft import prepare_model_for_kbit_training

    prepared: nn.Module = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return prepared


def _checkpoint(model: Any, how: Any) -> None:
    """Switch activation checkpointing on, as Trainer does; how it computes again is the tracer's."""
    kind = {"use_reentrant": False}
    every = {"every_n_layers": how["every_n_layers"]} if how["every_n_layers"] > 1 else {}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(kind, **every)
    else:
        model.gradient_checkpointing_enable(kind)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from remarks on a model that nobody trains here, and torch from reports of what is caught."""
    from transformers.utils import logging

    reports = getLogger("torch._subclasses.fake_tensor")
    before, level = logging.get_verbosity(), reports.level
    logging.set_verbosity_error()
    reports.setLevel(CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        reports.setLevel(level)

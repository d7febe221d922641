"""A model without data: its real classes on tensors that have shapes and dtypes only."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def on_meta(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors without data inside, floating-point ones of `dtype` where nobody says otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def faked(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Put a tensor of `mode` in the place of every parameter and buffer of `model`, which is changed.

    Shared weights stay shared. Moving or casting a module inside the mode fails, which is why this is done by hand.
    """
    memo: dict[int, Any] = {}
    with mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = _parameter(parameter, memo)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = memo.setdefault(id(buffer), (buffer, _empty(buffer)))[1]
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor) and value.is_meta:
                    setattr(module, name, _empty(value))
            if getattr(module, "quant_state", None) is not None:
                module.quant_state = _state(module.quant_state)
                module.weight.quant_state = module.quant_state  # type: ignore[union-attr]
    return model


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _parameter(parameter: nn.Parameter, memo: dict[int, Any]) -> Any:
    if id(parameter) not in memo:
        fresh = nn.Parameter(_empty(parameter), requires_grad=parameter.requires_grad)
        memo[id(parameter)] = parameter, fresh  # the old one is kept, so that no other gets its id
    return memo[id(parameter)][1]


def _state(value: Any) -> Any:
    """Return a weight's quantization state, or whatever else hangs on it, on tensors of the mode."""
    if isinstance(value, torch.Tensor):
        return _empty(value)
    if type(value).__name__ == "QuantState":
        value = copy.copy(value)
        for name, held in vars(value).items():
            setattr(value, name, _state(held))
    return value


def without_data(model: nn.Module) -> nn.Module:
    """Return a copy of a module of yours whose tensors have no data; the module itself stays as it is."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        bare = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        memo[id(tensor)] = (
            nn.Parameter(bare, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare
        )
    return copy.deepcopy(model, memo)


def tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield every tensor that a model holds: parameters, buffers and what quantization keeps beside its weights."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from _held(getattr(module, "quant_state", None))


def _held(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value).__name__ == "QuantState":
        for held in vars(value).values():
            yield from _held(held)


def body_of(model: Any) -> nn.Module:
    """Return the model under an adapter's wrapper."""
    inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner


def dtype_of(name: str | torch.dtype | None, config: Any) -> torch.dtype:
    """Return the dtype in which `from_pretrained(dtype=name)` loads a checkpoint that `config` describes."""
    if isinstance(name, torch.dtype):
        return name
    if name in (None, "auto"):
        name = str(named_dtype(config) or "float32").removeprefix("torch.")
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch: write 'bfloat16', 'float16' or 'float32'.")
    return dtype


def named_dtype(config: Any) -> Any:
    """Return the dtype of the checkpoint that a configuration names, itself or for its text; None where it does not."""
    parts = (config, getattr(config, "get_text_config", lambda: config)())
    return next((found for p in parts for name in ("dtype", "torch_dtype") if (found := getattr(p, name, None))), None)

"""Weights in 4 bits: the modules of bitsandbytes, without data, and what its CUDA kernels need."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hf_efficient.memory.record import note

ABSMAX_BLOCK = 256
"""Blocks of weights that share one constant in double quantization."""


def quantized(model: nn.Module, how: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """Put bitsandbytes' 4-bit layers in the place of the linear ones, but for the head, as `from_pretrained` does.

    `how`: the fields of BitsAndBytesConfig. `dtype`: of the weights that stay. Raises ValueError without bitsandbytes.
    """
    if not how.get("load_in_4bit"):
        raise ValueError("Only 4-bit weights are modelled, and this plan loads 8-bit ones: take qlora.")
    try:
        from transformers import BitsAndBytesConfig
        from transformers.integrations import bitsandbytes as integration
    except ImportError:
        raise ValueError("4-bit weights need bitsandbytes: run `pip install 'hf-efficient[quant]'`.") from None
    config = BitsAndBytesConfig(**how)
    replace: Any = integration.replace_with_bnb_linear
    keywords: dict[str, Any] = {"quantization_config": config, "modules_to_not_convert": _kept(model)}
    known = inspect.signature(replace).parameters
    made: nn.Module = replace(model, **{key: value for key, value in keywords.items() if key in known})
    for layer in made.modules():  # GPT-2's Conv1D among them
        if type(layer).__name__ == "Linear4bit":
            pack(layer, how, dtype)
    made.is_loaded_in_4bit = made.is_quantized = True  # type: ignore[assignment]
    return made


def _kept(model: Any) -> list[str]:
    """Return the modules that stay as they are, by the rule of transformers: the output embeddings, and T5's `wo`."""
    try:
        from transformers.quantizers.base import get_keys_to_not_convert
    except ImportError:
        from transformers.integrations import get_keys_to_not_convert
    return [*(get_keys_to_not_convert(model) or ()), *(getattr(model, "_keep_in_fp32_modules", None) or ())]


def pack(layer: Any, how: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Give a layer its packed weight, two values a byte, with one constant for each 64 of them."""
    from bitsandbytes.functional import QuantState

    shape, count = layer.weight.shape, layer.weight.numel()
    blocks = -(-count // 64)
    meta: dict[str, Any] = {"device": "meta"}
    state = QuantState(
        absmax=torch.empty(blocks, dtype=torch.float32, **meta),
        shape=shape,
        code=torch.empty(16, dtype=torch.float32, **meta),
        blocksize=64,
        quant_type=how.get("bnb_4bit_quant_type", "fp4"),
        dtype=dtype,
    )
    if how.get("bnb_4bit_use_double_quant"):
        state.absmax = torch.empty(blocks, dtype=torch.uint8, **meta)
        state.offset = torch.empty((), dtype=torch.float32, **meta)
        state.state2 = QuantState(
            absmax=torch.empty(-(-blocks // ABSMAX_BLOCK), dtype=torch.float32, **meta),
            code=torch.empty(256, dtype=torch.float32, **meta),
            blocksize=ABSMAX_BLOCK,
            dtype=torch.float32,
        )
        state.nested = True
    layer.weight = nn.Parameter(torch.empty((-(-count // 2), 1), dtype=torch.uint8, **meta), requires_grad=False)
    layer.weight.quant_state = state
    layer.weight.compress_statistics = state.nested  # PEFT asks for these
    layer.weight.quant_type = state.quant_type
    layer.quant_state = state
    layer.compute_type_is_set, layer.support_avx512bf16_for_cpu = True, False
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.empty(layer.out_features, dtype=dtype, **meta), requires_grad=False)


class _Dequantized(torch.autograd.Function):
    """A product with 4-bit weights: they are written out for it, forward and backward again, and nothing is kept.

    Source: MatMul4Bit in bitsandbytes/autograd/_functions.py.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply with the weights written out."""
        ctx.state = state
        return nn.functional.linear(x, written_out(state, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Write the weights out once more."""
        (gradient,) = grads
        return gradient @ written_out(ctx.state, gradient.dtype), None, None


def written_out(state: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight that a quantization state describes, in `dtype`, as dequantizing makes it."""
    constants = torch.empty(state.absmax.shape, dtype=torch.float32) if state.nested else None
    weight = torch.empty(state.shape, dtype=state.dtype)
    note("dequantize", 0, weight.numel() // 2 + weight.numel() * weight.element_size(), state.dtype)
    del constants
    return weight.to(dtype)


@contextmanager
def dequantizing(model: nn.Module) -> Iterator[None]:
    """Let 4-bit layers of `model` compute as they would on a GPU, as far as memory goes."""
    if not any(getattr(module, "quant_state", None) is not None for module in model.modules()):
        yield
        return
    import bitsandbytes

    before = bitsandbytes.matmul_4bit

    def imitated(x: Any, packed: Any, quant_state: Any, out: Any = None, bias: Any = None) -> Any:
        return _Dequantized.apply(x, quant_state, bias)

    bitsandbytes.matmul_4bit = imitated
    try:
        yield
    finally:
        bitsandbytes.matmul_4bit = before

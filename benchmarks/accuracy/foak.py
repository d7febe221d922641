"""The fused kernels of fms-acceleration's "foak" plugin and Liger's fused loss in it, as far as memory goes.

Sources, all in plugins/fused-ops-and-kernels/src/fms_acceleration_foak: kernels/unsloth/rms_layernorm.py and
rope_embedding.py, kernels/liger/fused_linear_cross_entropy.py, fused_ops/unsloth_lora/bnb/fast_lora.py, and
framework_plugin_fast_kernels.py, by which fused LoRA is for 4-bit weights alone, whose adapters FSDP then ignores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from rows import Row
from torch import nn


class _RmsNorm(torch.autograd.Function):
    """Input and one number a row are kept; the gradient is written into the one that comes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], torch.empty_like(ctx.saved_tensors[1]) if ctx.needs_input_grad[1] else None


class _Rope(torch.autograd.Function):
    """Queries and keys are turned in place, and so are their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class _Loss(torch.autograd.Function):
    """Piece by piece: logits, in float32, back in 16 bits, scaled, and the gradient of the hidden states from them."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, width = hidden.shape
        words = weight.shape[0]
        piece = 1 << (-(-rows // -(-words // width)) - 1).bit_length()
        gradients = [torch.empty_like(hidden)] + ([torch.empty_like(weight)] if ctx.needs_input_grad[1] else [])
        losses = torch.empty(rows, dtype=torch.float32)
        for start in range(0, rows, piece):
            taken = hidden[start : start + piece]
            logits = taken @ weight.t()
            logits = logits.float()
            logits = logits.to(hidden.dtype)
            scaled = logits * 1.0
            into = scaled @ weight
        del logits, scaled, into
        ctx.save_for_backward(*gradients)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kept = ctx.saved_tensors
        return kept[0], kept[1] if len(kept) > 1 else None


class _Lora(torch.autograd.Function):
    """Several 4-bit linears with adapters on one input: it and its dropped copies are kept, and nothing between."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layers: Any, *adapters: torch.Tensor) -> Any:
        flat, dropped, outs = x.reshape(-1, x.shape[-1]), [], []
        for layer, down, up in zip(layers, adapters[::2], adapters[1::2], strict=True):
            weight = _weight(layer)
            out = flat @ weight.t()
            del weight
            one = torch.native_dropout(x, 0.1, True)[0] if _drops(layer) else x
            dropped.append(one)
            out += (one.reshape(-1, x.shape[-1]) @ down.t().to(x.dtype)) @ (1.0 * up.t().to(x.dtype))
            outs.append(out.view(*x.shape[:-1], -1))
        ctx.layers = layers
        ctx.save_for_backward(x, *dropped, *adapters)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        count = len(ctx.layers)
        x, dropped, adapters = ctx.saved_tensors[0], ctx.saved_tensors[1 : 1 + count], ctx.saved_tensors[1 + count :]
        flat, found = x.reshape(-1, x.shape[-1]), []
        grads = tuple(g.reshape(-1, g.shape[-1]) for g in grads)
        for down, up in zip(adapters[::2], adapters[1::2], strict=True):
            found += [torch.empty_like(down), torch.empty_like(up)]
        into = flat if count > 1 else None  # for q, k and v it is written over the input
        for layer, one, g, down, up in zip(ctx.layers, dropped, grads, adapters[::2], adapters[1::2], strict=True):
            weight = _weight(layer)
            if into is None:
                into = g @ weight
            elif layer is not ctx.layers[0]:
                into = into.add_(g @ weight)
            del weight
            into.add_((one.reshape(flat.shape) != 0) * (g @ up.to(x.dtype) @ (1.0 * down.to(x.dtype))))
        return into.view(x.shape), None, *found


def _drops(layer: Any) -> bool:
    return bool(getattr(layer.lora_dropout["default"], "p", 0))


def _weight(layer: Any) -> torch.Tensor:
    state = layer.base_layer.quant_state
    constants = torch.empty(state.absmax.shape, dtype=torch.float32)
    weight = torch.empty(state.shape, dtype=state.dtype)
    del constants
    return weight


def fused(model: Any) -> nn.Module:
    """Give a model the norms and the loss of the plugin."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(lambda self, x: _RmsNorm.apply(x, self.weight), module)
    model.forward = MethodType(_forward, model)
    return model


def _forward(self: Any, input_ids: Any = None, labels: Any = None, **others: Any) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    others = {key: value for key, value in others.items() if value is not None}
    hidden = self.model(input_ids=input_ids, **others)[0]
    shifted = hidden[..., :-1, :].contiguous().view(-1, hidden.shape[-1])
    return CausalLMOutputWithPast(loss=_Loss.apply(shifted, self.lm_head.weight))


def fuse_adapters(model: Any) -> nn.Module:
    """Let q, k and v, and o, each with its adapter on 4-bit weights, be one operation."""
    for module in model.modules():
        names = [name for name in ("q_proj", "k_proj", "v_proj") if hasattr(getattr(module, name, None), "lora_A")]
        if len(names) == 3:
            _fuse_three([getattr(module, name) for name in names])
            module.o_proj.forward = MethodType(
                lambda self, x: _Lora.apply(x, [self], *_adapters([self]))[0], module.o_proj
            )
    return model


def _fuse_three(layers: list[Any]) -> None:
    """Compute all three when the first is asked for; each of the others hands out what is there."""

    def first(self: Any, x: torch.Tensor) -> torch.Tensor:
        outs = _Lora.apply(x, layers_of(self), *_adapters(layers_of(self)))
        for layer, out in zip(layers_of(self)[1:], outs[1:], strict=True):
            layer.__dict__["made"] = [out]
        return outs[0]

    def layers_of(self: Any) -> list[Any]:
        return self.__dict__["siblings"]

    layers[0].__dict__["siblings"] = layers
    layers[0].forward = MethodType(first, layers[0])
    for layer in layers[1:]:
        layer.forward = MethodType(lambda self, x: self.__dict__["made"].pop(), layer)


def _adapters(layers: list[Any]) -> list[torch.Tensor]:
    return [weight for layer in layers for weight in (layer.lora_A["default"].weight, layer.lora_B["default"].weight)]


@contextmanager
def patched(row: Row) -> Iterator[None]:
    """Turn queries and keys in place while a row with the plugin is traced."""
    name = "apply_rotary_pos_emb"
    modules = [
        m
        for n, m in list(sys.modules.items())
        if row.kernels and n.startswith("transformers.models.") and name in vars(m)
    ]
    if row.kernels and not modules:
        from importlib import import_module

        kinds = ("llama", "mistral", "granite", "mixtral")
        modules = [import_module(f"transformers.models.{kind}.modeling_{kind}") for kind in kinds]
    before = [vars(module)[name] for module in modules]
    for module in modules:
        vars(module)[name] = lambda q, k, *_, **__: (_Rope.apply(q), _Rope.apply(k))
    try:
        yield
    finally:
        for module, function in zip(modules, before, strict=True):
            vars(module)[name] = function

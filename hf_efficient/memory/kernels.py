"""Kernels of a GPU, as far as memory goes: what each keeps for the backward pass, and what it needs in passing."""

from __future__ import annotations

from typing import Any

import torch

from hf_efficient.memory.record import note

FLASH_WIDEST = 256
"""Widest head of torch's flash kernel."""
FORWARD, BACKWARD = 2, 5
"""Products of an attention kernel, which computes the scores anew for its backward pass."""


class _Flash(torch.autograd.Function):
    """Flash attention: q, k, v, the output and one float32 number per query are kept.

    Backward, the gradient of q is summed in float32, and grouped keys and values get a gradient per query head first.
    Source: mha_bwd in FlashAttention-2's csrc/flash_attn/flash_api.cpp.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, documents: int) -> Any:
        """Keep q, k, v, the output and the row sums."""
        out = torch.empty_like(q)
        ctx.causal, ctx.documents = causal, documents
        _note_attention("flash", q, k, v, causal=causal, documents=documents)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Make the three gradients, and what their sums take in passing."""
        q, k, v, _, logsumexp = ctx.saved_tensors
        _note_attention("flash", q, k, v, causal=ctx.causal, products=BACKWARD, documents=ctx.documents)
        _passing: list[torch.Tensor] = [torch.empty(q.shape, dtype=torch.float32), torch.empty_like(logsumexp)]
        if q.shape[1] != k.shape[1]:
            _passing += [torch.empty_like(q), torch.empty_like(q)]
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None, None


class _Efficient(torch.autograd.Function):
    """Memory-efficient attention: as flash attention, and the mask, as a bias in the dtype of q, is kept too.

    Source: _efficient_attention_backward in torch's native/transformers/cuda/attention_backward.cu.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool
    ) -> torch.Tensor:
        """Keep what flash attention keeps, and the bias."""
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        ctx.causal = causal
        _note_attention("efficient", q, k, v, causal=causal)
        queries = -(-q.shape[2] // 32) * 32
        ctx.save_for_backward(q, k, v, bias, out, q.new_empty(*q.shape[:2], queries, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Make the gradients, of a learned bias too."""
        q, k, v, bias, _, logsumexp = ctx.saved_tensors
        _note_attention("efficient", q, k, v, causal=ctx.causal, products=BACKWARD)
        _passing = [torch.empty_like(logsumexp)]
        if q.dtype != torch.float32:
            _passing.append(torch.empty(q.shape, dtype=torch.float32))
        learned = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), learned, None


def _note_attention(
    kind: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    products: int = FORWARD,
    documents: int = 1,
) -> None:
    """Note `products` products of queries and keys; a causal kernel leaves out half, and what other documents are."""
    rows, heads, length, width = q.shape
    flops = products * rows * heads * length * k.shape[2] * (width + v.shape[-1]) // documents
    moved = products * sum(tensor.numel() * tensor.element_size() for tensor in (q, k, v, q)) // FORWARD
    note(f"{kind} attention", flops // 2 if causal else flops, moved, q.dtype)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    flash: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    documents: int = 1,
) -> torch.Tensor:
    """Return what `scaled_dot_product_attention` returns, keeping what the kernel keeps that CUDA would choose.

    q, k, v: batch x heads x length x width. The flash kernel takes 16 bits without a mask, as wide as 256; the
    efficient one takes float32 and masks. `flash=False` is for cards before capability 8.0.
    """
    sixteen = query.dtype in (torch.float16, torch.bfloat16)
    if flash and sixteen and attn_mask is None and max(query.shape[-1], value.shape[-1]) <= FLASH_WIDEST:
        wide = (
            value
            if value.shape[-1] == query.shape[-1]
            else torch.nn.functional.pad(value, (0, query.shape[-1] - value.shape[-1]))
        )
        out: torch.Tensor = _Flash.apply(query, key, wide, is_causal, documents)
        return out[..., : value.shape[-1]]
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
    out = _Efficient.apply(query, key, value, attn_mask, is_causal)
    return out


class _Grouped(torch.autograd.Function):
    """One product per expert, of the rows that belong to it: input and weights are kept."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Keep rows and weights."""
        ctx.save_for_backward(rows, weight)
        _note_grouped(rows, weight, products=1)
        return rows.new_empty(rows.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Make the gradients that are asked for."""
        rows, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad
        _note_grouped(rows, weight, products=sum(needed[:2]))
        return (
            torch.empty_like(rows) if needed[0] else None,
            weight.new_empty(weight.shape) if needed[1] else None,
        )


def _note_grouped(rows: torch.Tensor, weight: torch.Tensor, *, products: int) -> None:
    flops = 2 * rows.shape[0] * weight.shape[-2] * weight.shape[-1]
    moved = (rows.shape[0] * (weight.shape[-2] + weight.shape[-1]) + weight.numel()) * rows.element_size()
    note("grouped product", products * flops, products * moved, rows.dtype)


def grouped_mm(rows: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return rows x weight[expert of the row], as `torch.nn.functional.grouped_mm` does; shapes S x K and E x K x N."""
    out: torch.Tensor = _Grouped.apply(rows, weight)
    return out


class _Ctc(torch.autograd.Function):
    """CTC: the log-probabilities and, for each frame, one number per place in the target and between are kept.

    Source: ctc_loss_gpu_template in torch's native/cuda/LossCTC.cu.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, targets: int) -> torch.Tensor:
        """Keep the log-probabilities and alpha."""
        frames, rows = log_probs.shape[:2]
        ctx.save_for_backward(log_probs, log_probs.new_empty(rows, frames, 2 * targets + 1))
        return log_probs.new_empty(())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Make beta and the gradient."""
        log_probs, alpha = ctx.saved_tensors
        _beta = torch.empty_like(alpha)
        return torch.empty_like(log_probs), None


def ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return what `torch.nn.functional.ctc_loss` returns; log_probs: frames x rows x letters."""
    rows = log_probs.shape[1]
    longest = targets.shape[1] if targets.ndim == 2 else -(-targets.shape[0] // rows)
    out: torch.Tensor = _Ctc.apply(log_probs, longest)
    return out

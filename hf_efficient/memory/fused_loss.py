"""Liger's fused loss: head and loss piece by piece, so that only a piece of the logits is ever there."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from hf_efficient.memory.record import note


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The gradients of hidden states and head are made in the forward pass and kept; logits exist a piece at a time.

    A piece is about as large as the hidden states. Source: liger-kernel 0.8, ops/fused_linear_cross_entropy.py.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Go through the pieces; hidden: rows x width, weight: vocabulary x width."""
        rows, width = hidden.shape
        pieces = -(-weight.shape[0] // width)
        piece = min(rows, 1 << (-(-rows // pieces) - 1).bit_length())
        gradients = [torch.empty_like(hidden), torch.empty_like(weight) if ctx.needs_input_grad[1] else None]
        losses = torch.empty(rows, dtype=torch.float32)
        for start in range(0, rows, piece):
            taken = hidden[start : start + piece]
            logits = taken @ weight.t()
            _note_gradients(logits, taken, weight if ctx.needs_input_grad[1] else None)
            into_hidden = logits @ weight
            del logits, into_hidden
        ctx.save_for_backward(*(g for g in gradients if g is not None))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Hand out what the forward pass kept."""
        kept = ctx.saved_tensors
        return kept[0], kept[1] if len(kept) > 1 else None


def _note_gradients(logits: torch.Tensor, taken: torch.Tensor, weight: torch.Tensor | None) -> None:
    """Note the kernel that writes the gradient of the logits over them, and the product for that of the head."""
    note("fused cross entropy", 0, 3 * logits.numel() * logits.element_size(), logits.dtype)
    if weight is not None:
        read = sum(t.numel() * t.element_size() for t in (logits, taken, weight, weight))
        note("addmm", 2 * logits.numel() * taken.shape[-1], read, logits.dtype)


def fuse_loss(model: nn.Module) -> nn.Module:
    """Let a causal language model compute its loss as with Liger's fused kernel, which returns no logits.

    Evaluation computes the logits as ever: `skip_logits` in liger-kernel's transformers/model/*.py.
    """
    model.forward = MethodType(_forward, model)
    return model


def _forward(self: Any, input_ids: Any = None, labels: Any = None, **others: Any) -> Any:
    if not self.training or labels is None:
        return type(self).forward(self, input_ids=input_ids, labels=labels, **others)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    others = {name: value for name, value in others.items() if value is not None and name != "num_items_in_batch"}
    others.pop("return_dict", None)
    hidden = getattr(self, self.base_model_prefix)(input_ids=input_ids, **others)[0]
    head = self.get_output_embeddings()
    loss = _FusedLinearCrossEntropy.apply(hidden.view(-1, hidden.shape[-1]), head.weight)
    return CausalLMOutputWithPast(loss=loss)

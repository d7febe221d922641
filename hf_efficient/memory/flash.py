"""FlashAttention's own package, where a plan asks for it: the path through transformers, without the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hf_efficient.memory.kernels import attention

NAME = "_flash_attention_forward"


def _flash_attention_forward(
    query_states: torch.Tensor,
    key_states: torch.Tensor,
    value_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    query_length: int | None = None,
    is_causal: bool = True,
    *_: Any,
    target_dtype: torch.dtype | None = None,
    position_ids: torch.Tensor | None = None,
    **__: Any,
) -> torch.Tensor:
    """Return attention over batch x length x heads x width; rows with padding are copied without it, and back.

    Source: transformers.modeling_flash_attention_utils.
    """
    states = [query_states, key_states, value_states]
    if query_states.dtype == torch.float32:
        states = [state.to(target_dtype or torch.bfloat16) for state in states]
    if attention_mask is not None:
        states = [state.clone() for state in states]
    query, key, value = (state.transpose(1, 2) for state in states)
    out = attention(query, key, value, is_causal=is_causal, documents=documents(position_ids)).transpose(1, 2)
    return out.clone() if attention_mask is not None else out


def documents(position_ids: torch.Tensor | None) -> int:
    """Return how many documents a packed row holds, which do not see each other: positions restart with each."""
    value: torch.Tensor | None = getattr(position_ids, "_value", None)
    if value is None:
        return 1
    with _disable_current_modes():
        return max(1, int((value == 0).sum().item()) // value.shape[0])


@contextmanager
def flash_attention(wanted: bool) -> Iterator[None]:
    """Let every model of transformers that is loaded call the imitation where it would call the package."""
    places = [
        module
        for name, module in list(sys.modules.items())
        if wanted and name.startswith("transformers.") and NAME in getattr(module, "__dict__", {})
    ]
    before = [vars(module)[NAME] for module in places]
    for module in places:
        vars(module)[NAME] = _flash_attention_forward
    try:
        yield
    finally:
        for module, function in zip(places, before, strict=True):
            vars(module)[NAME] = function

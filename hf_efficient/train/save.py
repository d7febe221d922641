"""The model and the tokenizer of a hand-written loop, saved so that `from_pretrained` loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn
    from transformers import PreTrainedTokenizerBase


def save_model(accelerator: Accelerator, model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: str) -> None:
    """Save a prepared model to `folder`, gathered and without torch.compile's names; every process must call it."""
    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        plain = {key.replace("_orig_mod.", ""): value for key, value in weights.items()}
        inner = accelerator.unwrap_model(model, keep_torch_compile=False)
        inner.save_pretrained(folder, state_dict=plain)
        tokenizer.save_pretrained(folder)

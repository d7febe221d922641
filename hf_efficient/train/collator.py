"""The plan's data collator for rows of tokens, for Trainer and for a DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.train.packing import Collate, keep_documents_apart

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase


def make_collator(
    plan: Plan, tokenizer: PreTrainedTokenizerBase, model: nn.Module | None = None, *, packed: bool = True
) -> Collate:
    """Return what turns rows of `input_ids` and `labels` into a batch of tensors, as the plan pads or packs.

    Labels are padded by themselves, with -100: a padding token that is also the end token stays a label. With packing
    the rows of a batch become one, positions restart with each document, and no attention mask is made; `model` is
    then needed, its cache is turned off, and it is tried on two documents. `packed=False` pads all the same, for an
    evaluation that counts rows.

    Raises ValueError where packing has no model, or one in which documents would see each other.
    """
    padding = {key: value for key, value in plan["collator"].items() if key == "pad_to_multiple_of"}
    if not (packed and plan["collator"].get("padding_free")):
        from transformers import DataCollatorForSeq2Seq

        padded: Collate = DataCollatorForSeq2Seq(tokenizer, **padding)
        return padded
    if model is None:
        raise ValueError("packing has to try the model: call make_collator(plan, tokenizer, model).")
    collate = _packed_rows(tokenizer, padding)
    keep_documents_apart(model, collate)
    return collate


def _packed_rows(tokenizer: PreTrainedTokenizerBase, keywords: dict[str, Any]) -> Collate:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    collate: Collate = DataCollatorForLanguageModeling(padding, padding_free=True, **keywords)
    return collate

"""The plan's data collator for rows of tokens, for Trainer and for a DataLoader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.train.items import IGNORED
from hf_efficient.train.packing import Collate, keep_documents_apart

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Rows = Sequence[Mapping[str, Any]]


def make_collator(
    plan: Plan, tokenizer: PreTrainedTokenizerBase, model: nn.Module | None = None, *, packed: bool = True
) -> Collate:
    """Return what turns rows of `input_ids` and `labels` into a batch of tensors, as the plan pads or packs.

    Labels of tokens are padded by themselves, with -100: a padding token that is also the end token stays a label.
    Rows without labels are to predict their own tokens; rows with one label each keep it. With packing the rows of a
    batch become one, positions restart with each document, and no attention mask is made; `model` is then needed, its
    cache is turned off, and it is tried on two documents. `packed=False` pads all the same, for an evaluation that
    counts rows.

    Raises ValueError where packing has no model, or one in which documents would see each other.
    """
    padding = {key: value for key, value in plan["collator"].items() if key == "pad_to_multiple_of"}
    if not (packed and plan["collator"].get("padding_free")):
        return Padded(tokenizer, padding)
    if model is None:
        raise ValueError("packing has to try the model: call make_collator(plan, tokenizer, model).")
    collate = _packed_rows(tokenizer, padding)
    keep_documents_apart(model, collate)
    return collate


@dataclass(frozen=True)
class Padded:
    """Pad rows to the longest, or to a multiple of tokens, with transformers' own collators."""

    tokenizer: PreTrainedTokenizerBase
    padding: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: Rows) -> Mapping[str, Any]:
        """Return the rows as one batch of tensors."""
        from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding

        labels = rows[0].get("labels", rows[0].get("label"))
        one_each = labels is not None and (not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0)
        kind = DataCollatorWithPadding if one_each else DataCollatorForSeq2Seq
        if labels is None:
            rows = [{**row, "labels": _own_tokens(row)} for row in rows]
        batch: Mapping[str, Any] = kind(self.tokenizer, **self.padding)([dict(row) for row in rows])
        return batch


def _own_tokens(row: Mapping[str, Any]) -> list[int]:
    """Return the tokens of a row as its labels, without those that are masked."""
    tokens = list(row["input_ids"])
    return [
        int(token) if kept else IGNORED
        for token, kept in zip(tokens, row.get("attention_mask", [1] * len(tokens)), strict=True)
    ]


def _packed_rows(tokenizer: PreTrainedTokenizerBase, keywords: dict[str, Any]) -> Collate:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    collate: Collate = DataCollatorForLanguageModeling(padding, padding_free=True, **keywords)
    return collate

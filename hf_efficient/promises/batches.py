"""Made rows -> batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_efficient.train.collator import Padded
from hf_efficient.train.items import IGNORED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENS = ("input_ids", "attention_mask", "labels", "token_type_ids")
JOINED = ("image_grid_thw", "pixel_values")
"""Lists of images and of their patches, which are joined where a row says how many patches it has."""


def collate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Rows:
    """Return what turns made rows for `model` into a batch: tokens and labels padded, images and sounds stacked."""
    return Rows(tokenizer, getattr(model.config, "image_token_id", None), named_images(model), model.dtype)


def named_images(model: PreTrainedModel) -> str | None:
    """Return the argument of `model` that says which tokens stand for images, or None where it asks for none."""
    import inspect

    named = "token_type_ids" if model.config.model_type.startswith("gemma3") else "mm_token_type_ids"
    asked = inspect.signature(type(model).forward).parameters
    return named if getattr(model.config, "image_token_id", None) is not None and named in asked else None


@dataclass(frozen=True)
class Rows:
    """Pad tokens and labels; stack the rest; say in `named` which tokens are images, as Qwen2-VL and Gemma 3 ask."""

    tokenizer: PreTrainedTokenizerBase
    image_token: int | None = None
    named: str | None = None
    dtype: torch.dtype | None = None
    padding: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of the padding, such as `pad_to_multiple_of`."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the rows as one batch of tensors."""
        import torch

        others = [name for name in rows[0] if name not in TOKENS]
        tokens = [{name: row[name] for name in row if name in TOKENS} for row in rows]
        if "input_ids" not in rows[0]:
            batch = self._labels_alone(tokens)
        elif isinstance(rows[0]["input_ids"][0], list):
            batch = self._choices(tokens)
        elif "labels" not in rows[0] or isinstance(_first(rows[0]["labels"]), float):
            batch = self._no_labels(tokens)
        else:
            batch = dict(Padded(self.tokenizer, self.padding)(tokens))
        for name in others:
            values = [torch.as_tensor(row[name]) for row in rows]
            values = [value.to(self.dtype) if value.is_floating_point() else value for value in values]
            joined = "image_grid_thw" in rows[0] and name in JOINED
            batch[name] = torch.cat(values) if joined else torch.stack(values)
        if self.named is not None and "pixel_values" in batch:
            batch[self.named] = (batch["input_ids"] == self.image_token).int()
        return batch

    def _labels_alone(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        labels = [torch.as_tensor(row["labels"]) for row in rows]
        return {"labels": pad_sequence(labels, True, IGNORED) if labels[0].ndim else torch.stack(labels)}

    def _no_labels(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Pad the tokens; labels that are numbers, one or several a row, are stacked."""
        import torch

        batch = dict(
            Padded(self.tokenizer, self.padding)([{"input_ids": row["input_ids"], "labels": 0} for row in rows])
        )
        del batch["labels"]
        return batch | ({"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {})

    def _choices(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        texts = [{"input_ids": text} for row in rows for text in row["input_ids"]]
        flat = self._no_labels(texts)
        shaped = {name: value.view(len(rows), -1, value.shape[-1]) for name, value in flat.items()}
        return shaped | {"labels": torch.tensor([row["labels"] for row in rows])}


def _first(labels: Any) -> Any:
    return labels[0] if isinstance(labels, list) else labels

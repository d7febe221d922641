"""Losses that nobody listed, for the tests of accumulation: of users, and of models whose rows depend on each other."""

from __future__ import annotations

import random
from typing import Any

import heads
import numpy as np
import torch
import transformers as tf
from heads import HEADS
from torch import nn
from torch.utils.data import default_collate

Rows = list[dict[str, Any]]


class Own(tf.Trainer):  # type: ignore[misc]
    """A trainer with a loss of its own, a mean over labels that are not shifted; it keeps notes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.notes: list[float] = []
        self.calls = 0

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the cross-entropy of labels that are not shifted."""
        self.calls += 1
        loss = unshifted(model, inputs)
        self.notes.append(loss.item())
        return (loss, {}) if return_outputs else loss


class Holding(tf.Trainer):  # type: ignore[misc]
    """A trainer that holds models and tensors in lists and dicts, and counts in a tensor."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.teachers = [nn.Linear(2, 2)]
        self.weights = {"of": [torch.tensor([1, 2])]}
        self.seen = torch.zeros(())
        self.drawn = [random.Random(0), torch.Generator().manual_seed(0), np.random.default_rng(0)]

    def compute_loss(self, model: nn.Module, inputs: Any, *rest: Any, **more: Any) -> Any:
        """Return the model's loss, and note it."""
        self.seen += 1
        self.weights["of"][0] += 1
        self.drawn[0].random()
        torch.rand(1, generator=self.drawn[1])
        self.drawn[2].random()
        self.new = getattr(self, "new", 0) + 1
        return super().compute_loss(model, inputs, *rest, **more)


class Weighed(tf.Trainer):  # type: ignore[misc]
    """A trainer whose loss weighs classes: a mean over the sum of their weights."""

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the weighed cross-entropy."""
        labels = inputs.pop("labels")
        return nn.functional.cross_entropy(model(**inputs).logits, labels, weight=torch.tensor([1.0, 2.0, 5.0]))


class Waiting(tf.Trainer):  # type: ignore[misc]
    """A trainer whose loss waits for the other processes, as TRL's do; without labels it is 0."""

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the mean loss, after all processes are there."""
        self.accelerator.gather(torch.ones(1))
        output = model(**{key: value for key, value in inputs.items() if key != "tags"})
        return output.logits.sum() * 0 if output.loss is None else output.loss


DRAWN = random.Random(0)


def drawing(rows: Rows) -> Any:
    """Collate, and draw from a generator of the module."""
    DRAWN.random()
    return default_collate(rows)


def drawing_by_default(rows: Rows, generator: random.Random = random.Random(0)) -> Any:  # noqa: B008
    """Collate, and draw from a generator of the function."""
    generator.random()
    return default_collate(rows)


def without_a_key(rows: Rows) -> dict[str, Any]:
    """Collate, and call the labels of rows that begin with 3 something else."""
    batch = default_collate(rows)
    return {("tags" if key == "labels" and batch["input_ids"][0, 0] == 3 else key): v for key, v in batch.items()}


class Read(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of a class of one's own, of which each process reads its share."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        """Return one."""
        return self.rows[number]


def unshifted(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss of a causal model over labels that are not shifted."""
    logits = model(input_ids=batch["input_ids"]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def with_items(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    kind = "mean" if num_items_in_batch is None else "sum"
    loss = nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction=kind)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def needs_items(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs["logits"].flatten(0, 1)
    return nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch


def drops_items(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


class Regularised(tf.Trainer):  # type: ignore[misc]
    """A trainer that adds a penalty to the model's loss."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss and a penalty that nothing divides."""
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        return loss + 1e-4 * sum(weight.square().sum() for weight in model.parameters())


class Normed(heads.Plain):
    """A model with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(heads.LENGTH)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss of normalised numbers."""
        return super().forward(self.norm(input_ids.float()) * 48, labels)


class Restless(heads.Plain):
    """A model that draws numbers and changes its buffers with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("longer", torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss, which depends on no random number."""
        random.random(), np.random.rand(), torch.rand(1)
        self.calls += 1
        self.longer += 1
        self.longer = torch.cat([self.longer, self.longer])
        return super().forward(input_ids, labels)


class Finding(heads.Plain):
    """A model that returns a loss with labels and without."""

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, return_loss: bool = True
    ) -> dict[str, torch.Tensor]:
        """Return the loss of labels, which are the tokens where none are given."""
        return super().forward(input_ids, input_ids if labels is None else labels)


def _clip() -> nn.Module:
    text = {**heads.SMALL, "eos_token_id": 2, "bos_token_id": 1}
    vision = {key: value for key, value in heads.VIT.items() if key != "num_labels"}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))


def _pairs() -> Rows:
    rows = heads.with_each(
        heads.images(), key="input_ids", values=torch.stack([r["input_ids"] for r in heads.tokens()])
    )
    return [{key: value for key, value in row.items() if key != "labels"} for row in rows]


def _contrasted(rows: Rows) -> dict[str, Any]:
    return {**default_collate(rows), "return_loss": True}


def _two_tasks() -> Rows:
    return heads.of_classes(heads.tagged(), 2, key="next_sentence_label")


ROUTED = heads.MOE | {"output_router_logits": True, "router_aux_loss_coef": 1e-4}


COUPLED = {
    "CLIPModel": (_clip, _pairs, {"data_collator": _contrasted}, "rows depend on each other"),
    "MixtralForCausalLM": (heads.made("MixtralForCausalLM", **ROUTED), heads.causal, {}, "not divided by num_items"),
    "Normed": (Normed, heads.causal, {}, "batch norm"),
    "BertForPreTraining": (
        heads.made("BertForPreTraining", **heads.SMALL),
        _two_tasks,
        {},
        "means over different items",
    ),
    "LlamaForCausalLM": (HEADS["llama"].build, heads.causal, {"kind": Regularised}, "not divided by num_items"),
}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows that can be read only once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        """Give the rows away."""
        while self.rows:
            yield self.rows.pop(0)

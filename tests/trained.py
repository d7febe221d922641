"""One update of a Trainer, and of one big batch by torch alone, as vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from heads import without_dropout
from torch import nn
from torch.utils.data import default_collate

Rows = list[dict[str, Any]]
FLAGS: dict[str, Any] = {
    "use_cpu": True, "optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0,
    "max_steps": 1, "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no",
    "train_sampling_strategy": "sequential",
}  # fmt: skip


def trainer_of(model: nn.Module, rows: Any, folder: Path, *, kind: type = tf.Trainer, **more: Any) -> tf.Trainer:
    """Return a trainer of `model`; what is no field of TrainingArguments goes to the Trainer."""
    fields = tf.TrainingArguments.__dataclass_fields__
    flags = {key: value for key, value in more.items() if key in fields}
    args = tf.TrainingArguments(output_dir=str(folder), **(FLAGS | flags))
    return kind(model=model, args=args, train_dataset=rows, **{k: v for k, v in more.items() if k not in fields})


def update_of(trainer: tf.Trainer) -> torch.Tensor:
    """Train, and return what was taken from the weights."""
    before = weights(trainer.model)
    trainer.train()
    return before - weights(trainer.model)


def weights(model: nn.Module) -> torch.Tensor:
    """Return all weights as one vector in 64 bits."""
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters() if weight.requires_grad])


def big_batch(model: nn.Module, rows: Rows, *, loss_of: Any = None) -> torch.Tensor:
    """Return the gradient of one batch of all `rows` by the head's own loss, or `loss_of(model, batch)`."""
    model = copy.deepcopy(model).train()
    batch = default_collate(rows)
    if loss_of is None:
        output = model(**batch)
        loss = output["loss"]
    else:
        loss = loss_of(model, batch)
    loss.backward()
    return gradients(model)


def gradients(model: nn.Module) -> torch.Tensor:
    """Return the gradients of all trained weights as one vector in 64 bits."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained]
    return torch.cat([grad.double().flatten() for grad in grads])


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Both vectors are one, in direction and in length."""
    assert ((ours - theirs).norm() / theirs.norm()).item() <= 1e-5
    assert abs((ours.norm() / theirs.norm()).item() - 1) <= 1e-5


def model_of(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a model without dropout, always the same."""
    torch.manual_seed(0)
    return without_dropout(build()).train()

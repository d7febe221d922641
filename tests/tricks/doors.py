"""A few updates of the tiny model through either door, and what the real objects show of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from copies import copy_of
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from transformers import Trainer, default_data_collator

import hf_efficient as hf
from hf_efficient.plan import Plan

DOORS = pytest.mark.parametrize("door", ["trainer", "loop"])
LAUNCHED_DOORS = pytest.mark.parametrize("door", ["trainer", pytest.param("loop", marks=pytest.mark.slow)])
"""One launch per engine in `make test`, the other in `make test-all`."""
ONLY_CPU = pytest.mark.skipif(torch.accelerator.is_available(), reason="says what happens without an accelerator")
HYPER = {"learning_rate": 1e-3, "weight_decay": 0.1}


@dataclass
class Run:
    """What one run showed: rows per forward, the whole gradient per update, `trained` as accelerate prepared it."""

    model: nn.Module
    batches: list[int] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    optimizer: Optimizer | None = None
    loader: DataLoader[Any] | None = None
    trained: Any = None
    accelerator: Any = None

    @property
    def norms(self) -> list[float]:
        """The gradient's norm at each update."""
        return [gradient.norm().item() for gradient in self.gradients]


def load(tiny: Path, plan: Plan | None = None) -> nn.Module:
    """Return the tiny model, loaded as `plan` says."""
    model: nn.Module = copy_of(tiny, **hf.model_keywords(plan or Plan()))
    return model


def train(door: str, plan: Plan, model: nn.Module, rows: Sequence[Any], *, updates: int = 2, rate: float = 1e-3) -> Run:
    """Train `model` on `rows`, in their order, through `door`."""
    run = Run(model)
    with watched(run):
        {"trainer": _by_trainer, "loop": _by_loop}[door](plan, run, rows, updates, rate)
    return run


@contextmanager
def watched(run: Run) -> Iterator[None]:
    """Note each forward pass of the model and each update, whoever calls them."""

    def note_update(optimizer: Optimizer, *_: Any) -> None:
        run.optimizer = optimizer
        gradients = [parameter.grad.flatten() for parameter in run.model.parameters() if parameter.grad is not None]
        run.gradients.append(torch.cat(gradients) if gradients else torch.zeros(0))  # DeepSpeed keeps its own

    def note_batch(module: nn.Module, args: Any, keywords: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # `windows` tries the loss first, without gradients
            run.batches.append(len(keywords["input_ids"]))

    hooks = [
        register_optimizer_step_pre_hook(note_update),
        run.model.register_forward_pre_hook(note_batch, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def learning(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that sees training and not what `windows` tries before, without gradients and in evaluation."""
    return lambda module, *args: hook(module, *args) if module.training else None


def _by_trainer(plan: Plan, run: Run, rows: Sequence[Any], updates: int, rate: float) -> None:
    quiet = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    order = {"train_sampling_strategy": "sequential", "lr_scheduler_type": "constant"}
    with TemporaryDirectory() as folder:
        args = hf.training_arguments(
            plan, output_dir=folder, max_steps=updates, **quiet, **order, **HYPER | {"learning_rate": rate}
        )
        trainer = Trainer(hf.add_adapter(plan, run.model), args, train_dataset=rows)
        trainer.train()
    run.loader, run.trained = trainer.callback_handler.train_dataloader, trainer.model_wrapped
    run.accelerator = trainer.accelerator


def _by_loop(plan: Plan, run: Run, rows: Sequence[Any], updates: int, rate: float) -> None:
    accelerator = hf.make_accelerator(plan)
    model = hf.prepare_model(plan, run.model).train()
    optimizer = hf.make_optimizer(plan, model, lr=rate, weight_decay=HYPER["weight_decay"])
    own = {"dataset": rows, "collate_fn": default_data_collator}
    keywords = {"batch_size": 8} | hf.dataloader_keywords(plan, **own)
    loader = DataLoader(**keywords)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    optimizer.train()
    for window in islice(hf.windows(loader, accelerator), updates):
        for batch in window:
            window.backward(model(**batch, num_items_in_batch=window.items).loss)
        hf.clip(plan, accelerator, model)
        optimizer.step()
        optimizer.zero_grad()
    run.loader, run.trained, run.accelerator = loader, model, accelerator


def groups(run: Run) -> tuple[Any, ...]:
    """Return the optimizer's class and its groups with the parameters' names, to be compared."""
    names: dict[Any, str] = {parameter: name for name, parameter in run.model.named_parameters()}
    kept = [{key: value for key, value in group.items() if key != "initial_lr"} for group in run.optimizer.param_groups]
    return type(run.optimizer), [group | {"params": [names[p] for p in group["params"]]} for group in kept]


def state_bytes(run: Run) -> int:
    """Return the bytes of the optimizer's state, with what objects in it hold; a table that tensors share is one."""
    found = [tensor for state in run.optimizer.state.values() for tensor in _tensors(list(state.values()))]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in found}.values())


def block_bytes(run: Run) -> int:
    """Return the bytes of the optimizer's state for the linear layers of the blocks; the rest is thrown away."""
    blocks = {parameter for name, parameter in run.model.named_parameters() if "proj" in name}
    for parameter in run.optimizer.state.keys() - blocks:
        del run.optimizer.state[parameter]
    return state_bytes(run)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and not hasattr(value, "__tensor_flatten__"):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from _tensors([getattr(value, name) for name in value.__tensor_flatten__()[0]])
    else:
        for part in value if isinstance(value, list) else vars(value).values() if hasattr(value, "__dict__") else ():
            yield from _tensors(part)


REFUSE: dict[str, Callable[[Plan], Any]] = {
    "trainer": lambda plan: hf.training_arguments(plan, output_dir="unused"),
    "loop": hf.make_accelerator,
}
"""What each door does first with a plan, to see it refused."""

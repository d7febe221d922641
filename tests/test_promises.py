"""Every trick keeps the promise of its `numerics`, measured against training without it on the same samples.

`pytest -rP tests/test_promises.py` prints the distances.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import variants
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, default_data_collator

import hf_efficient as hf
from hf_efficient.emit.here import training_machine
from hf_efficient.plan import Plan
from hf_efficient.trick import Trick
from hf_efficient.tricks import catalogue

Rows = list[dict[str, Any]]
Vector = torch.Tensor
EXACT = 1e-5


def cases() -> Iterator[Any]:
    """Yield every trick with its defaults, and the variants that their tests name, through both doors."""
    for spelling in [*catalogue(), *variants.VARIANTS]:
        marks = [pytest.mark.launch] if spelling in variants.NOT_FAST else []
        if spelling in BY_HAND:
            yield pytest.param(spelling, BY_HAND[spelling], marks=marks, id=spelling)
            continue
        for name, door in {"trainer": trainer_gradient, "loop": loop_gradient}.items():
            yield pytest.param(spelling, door, marks=marks, id=f"{spelling}-{name}")


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """Take back the variables by which TrainingArguments tells accelerate to compile, and what was compiled."""
    with mock.patch.dict(os.environ):
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def samples(rows: Rows) -> Rows:
    """Sixty-four rows with 2 to 16 labels each, the fewest first: the samples of one update."""
    few = [torch.arange(16) < 2 + number * 15 // 64 for number in range(64)]
    return [
        {"input_ids": row["input_ids"], "labels": row["labels"].where(there, -100)}
        for row, there in zip(rows, few, strict=True)
    ]


@pytest.fixture(scope="module")
def learned(tiny: Path, tmp_path_factory: pytest.TempPathFactory, samples: Rows) -> Path:
    """A folder with the tiny model after 30 updates on the samples.

    It is harder than random weights: as the gradients of the samples come to cancel, their sum shrinks and its rounding
    errors do not (bf16 is off by 0.7 eps before and by 4.6 eps after).
    """
    model = AutoModelForCausalLM.from_pretrained(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(30):
        model(**default_data_collator(samples)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("learned")
    model.save_pretrained(folder)
    return folder


def vector(tensors: Any) -> Vector:
    """Return tensors as one vector in 64 bits."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def relative(ours: Vector, theirs: Vector) -> float:
    """Return the relative L2 distance of two vectors."""
    return ((ours - theirs).norm() / theirs.norm()).item()


def one_update(plan: Plan, samples: int) -> Plan:
    """Return `plan` with what it leaves open about the micro-batches, so that one update sees `samples` samples."""
    steps = plan["accelerator"].get("gradient_accumulation_steps", 1)
    plan = plan.assume("dataloader", {"batch_size": samples // steps}, by="you")
    plan = plan.assume("trainer", {"per_device_train_batch_size": samples // steps}, by="you")
    return plan.assume("loop", {"effective_batch": samples}, by="you")


def plain_gradient(model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient of one batch, by torch alone."""
    model(**default_data_collator(samples)).loss.backward()
    return vector(weight.grad for weight in model.parameters())


def trainer_gradient(plan: Plan, model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient that the optimizer sees in the first update of Trainer with the plan's arguments."""
    seen: list[Vector] = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            seen.append(vector(weight.grad for weight in model.parameters()))

    args = trainer_arguments(plan.assume("trainer", {"max_grad_norm": 0.0}, by="you"), model, max_steps=1)
    Trainer(model=model, args=args, train_dataset=samples, callbacks=[Look()]).train()
    (gradient,) = seen
    return gradient


def trainer_arguments(plan: Plan, model: nn.Module, **yours: Any) -> Any:
    """Return the plan's arguments for a quiet run that saves nothing."""
    folder = model.config.name_or_path
    return hf.training_arguments(plan, output_dir=folder, save_strategy="no", disable_tqdm=True, **RATES, **yours)


def loop_gradient(plan: Plan, model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient that the optimizer sees in the first update of a hand-written loop of the plan's objects."""
    accelerator = hf.make_accelerator(plan)
    loader = DataLoader(**hf.dataloader_keywords(plan, dataset=samples))
    prepared, loader = accelerator.prepare(hf.prepare_model(plan, model), loader)
    prepared.train()
    (window,) = hf.windows(loader, accelerator)
    for batch in window:
        window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
    hf.clip(plan, accelerator, prepared)
    return vector(weight.grad for weight in model.parameters())


def fp16_gradient(plan: Plan, model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient under torch's own autocast and loss scaling, since the stack's fp16 is fp32 on a CPU."""
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        loss = model(**default_data_collator(samples)).loss
    scaler.scale(loss).backward()
    scaler.unscale_(torch.optim.SGD(model.parameters()))
    return vector(weight.grad for weight in model.parameters())


BY_HAND: dict[str, Callable[[Plan, nn.Module, Rows], Vector]] = {"fp16": fp16_gradient}
"""Tricks that cannot run on a CPU but can be measured there without the stack."""
RATES = {"learning_rate": 1e-3, "weight_decay": 0.1}


def moved(optimizer: torch.optim.Optimizer, model: nn.Module, gradients: list[Vector]) -> Vector:
    """Return what `optimizer` adds to the weights in one update for each of `gradients`."""
    weights = list(model.parameters())
    before = vector(weights)
    for gradient in gradients:
        parts = gradient.float().split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight).clone()
        optimizer.step()
    return vector(weights) - before


def trainer_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that Trainer makes from the plan's arguments."""
    return Trainer(model=model, args=trainer_arguments(plan, model)).create_optimizer()


def loop_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a hand-written loop."""
    return hf.make_optimizer(plan, model, lr=RATES["learning_rate"], weight_decay=RATES["weight_decay"])


OPTIMIZERS = {trainer_gradient: trainer_optimizer, loop_gradient: loop_optimizer}
# Without the trick: torch's AdamW, a loop over the tensors. The stack's own default would be the fused one.
ADAMW = Plan().override("trainer", {"optim": "adamw_torch"}, by="you")


@pytest.mark.parametrize(("spelling", "door"), list(cases()))
def test_promise(spelling: str, door: Any, learned: Path, tmp_path: Path, samples: Rows) -> None:
    """Gradients (an optimizer's updates) are as near to those without the trick as its `numerics` promises."""
    plan = hf.make_plan(spelling)
    (trick,) = plan.tricks
    if door not in BY_HAND.values():
        skip_what_cannot_run(plan)

    def load() -> Any:
        model = AutoModelForCausalLM.from_pretrained(learned, **plan["model"])
        model.config.name_or_path = str(tmp_path)
        return model

    if trick.family == "optimizer":
        thirds = [plain_gradient(load(), samples[third::3]) for third in range(3)]
        optimizer = OPTIMIZERS[door]
        model, other = load(), load()
        ours = moved(optimizer(plan, model), model, thirds)
        theirs = moved(trainer_optimizer(ADAMW, other), other, thirds)
    else:
        ours = door(one_update(plan, len(samples)), load(), samples)
        theirs = plain_gradient(load(), samples)
    judge(trick, relative(ours, theirs))


def skip_what_cannot_run(plan: Plan) -> None:
    """Skip a trick that this machine or this process cannot run, and say why."""
    if unmet := plan.unmet(training_machine()):
        pytest.skip(f"cannot be measured here: {unmet[0]}")
    if plan.engine != "NO":
        pytest.skip(f"{plan.engine} trains in processes of its own, started by its launcher, and not in this one")


def judge(trick: Trick, distance: float) -> None:
    """Compare a measured distance with the trick's promise, and print both."""
    dtype = getattr(torch, trick.within.dtype if trick.within else "float32")
    eps = torch.finfo(dtype).eps
    promised = {"exact": f"{EXACT:g}", "different": "nothing"}
    bound = f"{trick.within.multiple:g} eps" if trick.within else promised[trick.numerics]
    print(f"\n{trick.name}: {distance:.2e} = {distance / eps:.2f} eps of {dtype}; {trick.numerics}, promises {bound}")
    assert (trick.numerics == "close") == bool(trick.within), "`close` says within how much, and nothing else does"
    if trick.numerics == "exact":
        assert distance <= EXACT
    elif trick.within:
        assert distance <= trick.within.multiple * eps
        assert distance > eps / 20 or dtype == torch.float32, "nearer than 16 bits can be: the trick did nothing"
    else:
        assert distance < float("inf"), "not even a number"

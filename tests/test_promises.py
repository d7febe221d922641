"""Every trick keeps the promise of its `numerics`, measured against training without it on the same samples.

`pytest -rP tests/test_promises.py` prints the distances.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import variants
from copies import copy_of
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, Trainer, TrainerCallback

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
        marks = [pytest.mark.launch] if spelling in (*variants.NOT_FAST, *variants.VARIANTS) else []
        marks = [pytest.mark.slow] if spelling in variants.SLOW else marks
        if spelling in BY_HAND:
            yield pytest.param(spelling, BY_HAND[spelling], marks=marks, id=spelling)
            continue
        for name, door in {"trainer": trainer_gradient, "loop": loop_gradient}.items():
            yield pytest.param(spelling, door, marks=marks, id=f"{spelling}-{name}")


@pytest.fixture(autouse=True)
def _leave_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take back the variables by which TrainingArguments tells accelerate to compile, and what was compiled."""
    with mock.patch.dict(os.environ):
        yield
    if "compile" in request.node.name or "torchao" in request.node.name:
        torch._dynamo.reset()


@pytest.fixture(scope="module")
def samples(rows: Rows) -> Rows:
    """Sixty-four rows of 2 to 16 tokens, the shortest first: the samples of one update."""
    lengths = [2 + number * 15 // 64 for number in range(64)]
    tokens = [row["input_ids"].tolist()[:length] for row, length in zip(rows, lengths, strict=True)]
    return [{"input_ids": row, "labels": row} for row in tokens]


@pytest.fixture(scope="module")
def learned(tiny: Path, tmp_path_factory: pytest.TempPathFactory, samples: Rows) -> Path:
    """A folder with the tiny model after 30 updates on the samples.

    It is harder than random weights: as the gradients of the samples come to cancel, their sum shrinks and its rounding
    errors do not (bf16 is off by 0.7 eps before and by 4.6 eps after).
    """
    model = load(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(30):
        model(**padded(model, samples)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("learned")
    model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, plan: Plan | None = None) -> Any:
    """Return the model in `folder`, loaded as `plan` says, with the tokenizer that pads for it."""
    model = copy_of(folder, **hf.model_keywords(plan or Plan()))
    model.tokenizer = tokenizer(folder)
    return model


tokenizer = cache(AutoTokenizer.from_pretrained)


def padded(model: Any, samples: Rows) -> Any:
    """Return one batch of the samples, padded to the longest of them, labels with -100."""
    return hf.make_collator(Plan(), model.tokenizer)(samples)


def prepared_data(plan: Plan, model: Any, samples: Rows) -> dict[str, Any]:
    """Return the samples as the plan packs them and the collator that pads or packs them, by the names of each door."""
    dataset = hf.pack(plan, Dataset.from_list(samples), max_length=32)
    return {"dataset": dataset, "collate_fn": hf.make_collator(plan, model.tokenizer, model)}


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
    model(**padded(model, samples)).loss.backward()
    return vector(weight.grad for weight in model.parameters())


def trainer_gradient(plan: Plan, model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient that the optimizer sees in the first update of Trainer with the plan's arguments."""
    seen: list[Vector] = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            seen.append(vector(weight.grad for weight in model.parameters()))

    args = trainer_arguments(plan.assume("trainer", {"max_grad_norm": 0.0}, by="you"), model, max_steps=1)
    data = prepared_data(plan, model, samples)
    Trainer(model, args, data["collate_fn"], data["dataset"], callbacks=[Look()]).train()
    (gradient,) = seen
    return gradient


def trainer_arguments(plan: Plan, model: nn.Module, **yours: Any) -> Any:
    """Return the plan's arguments for a quiet run that saves nothing."""
    folder = model.config.name_or_path
    return hf.training_arguments(plan, output_dir=folder, save_strategy="no", disable_tqdm=True, **RATES, **yours)


def loop_gradient(plan: Plan, model: nn.Module, samples: Rows) -> Vector:
    """Return the gradient that the optimizer sees in the first update of a hand-written loop of the plan's objects."""
    accelerator = hf.make_accelerator(plan)
    loader = DataLoader(**hf.dataloader_keywords(plan, **prepared_data(plan, model, samples)))
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
        loss = model(**padded(model, samples)).loss
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
    getattr(optimizer, "train", lambda: None)()  # schedule-free ones have two sets of weights
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


@pytest.fixture(scope="module")
def plain(learned: Path, samples: Rows) -> Vector:
    """The gradient of the samples without any trick."""
    return plain_gradient(load(learned), samples)


@pytest.fixture(scope="module")
def adamw(learned: Path, samples: Rows) -> list[Vector]:
    """The gradients of three thirds of the samples, and what torch's AdamW, a loop over the tensors, makes of them."""
    thirds = [plain_gradient(load(learned), samples[third::3]) for third in range(3)]
    model = load(learned)
    decayed = Trainer.get_decay_parameter_names(None, model)
    groups = [
        {"params": [weight for name, weight in model.named_parameters() if (name in decayed) == decay],
         "weight_decay": RATES["weight_decay"] * decay}
        for decay in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATES["learning_rate"], foreach=False)
    return [*thirds, moved(optimizer, model, thirds)]


@pytest.mark.parametrize(("spelling", "door"), list(cases()))
def test_promise(
    spelling: str, door: Any, learned: Path, tmp_path: Path, samples: Rows, plain: Vector, adamw: list[Vector]
) -> None:
    """Gradients (an optimizer's updates) are as near to those without the trick as its `numerics` promises."""
    plan = hf.make_plan(spelling)
    (trick,) = plan.tricks
    if door not in BY_HAND.values():
        skip_what_cannot_run(plan)

    model = load(learned, plan)
    model.config.name_or_path = str(tmp_path)
    if trick.family == "optimizer":
        *thirds, theirs = adamw
        ours = moved(OPTIMIZERS[door](plan, model), model, thirds)
    else:
        ours, theirs = door(one_update(plan, len(samples)), model, samples), plain
    judge(trick, relative(ours, theirs))


def skip_what_cannot_run(plan: Plan) -> None:
    """Skip a trick that this machine or this process cannot run or whose gradient is another thing, and say why."""
    if plan["peft"]:
        pytest.skip("trains other parameters: its own test shows what")
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

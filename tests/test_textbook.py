"""What the textbooks say about the tricks, as facts about the objects that our plans become."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from copies import copy_of
from doors import learning
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, default_data_collator, set_seed

import hf_efficient as hf
from hf_efficient.plan import Plan

Rows = list[dict[str, Any]]


class Update(NamedTuple):
    """The gradient that the optimizer saw and what it subtracted from the weights, each as one vector."""

    gradient: torch.Tensor
    change: torch.Tensor


def vector(model: nn.Module, *, gradient: bool = True) -> torch.Tensor:
    """Return all gradients, or all weights, as one vector in 64 bits."""
    return torch.cat([(p.grad if gradient else p).detach().double().flatten() for p in model.parameters()])


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the relative L2 distance of two vectors."""
    return ((ours - theirs).norm() / theirs.norm()).item()


def plain(model: nn.Module, batches: list[Rows]) -> torch.Tensor:
    """Return the mean over `batches` of the gradients of their mean losses, by torch alone."""
    for batch in batches:
        (model(**default_data_collator(batch)).loss / len(batches)).backward()
    return vector(model)


def by_trainer(plan: Plan, model: nn.Module, rows: Rows) -> Update:
    """Make one update with Trainer and the plan's arguments, the rows in their order, plain SGD at learning rate 1."""
    seen: list[torch.Tensor] = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            seen.append(vector(model))

    yours = {"max_steps": 1, "save_strategy": "no", "disable_tqdm": True, "train_sampling_strategy": "sequential"}
    sgd = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant"}
    args = hf.training_arguments(plan, output_dir=model.config.name_or_path, **yours, **sgd)
    before = vector(model, gradient=False)
    Trainer(model=model, args=args, train_dataset=rows, callbacks=[Look()]).train()
    assert len(seen) == 1
    return Update(seen[0], before - vector(model, gradient=False))


def by_loop(plan: Plan, model: nn.Module, rows: Rows) -> Update:
    """Make one update with a hand-written loop and the plan's objects, the rows in their order, plain SGD at rate 1."""
    accelerator = hf.make_accelerator(plan)
    before = vector(model, gradient=False)
    optimizer = hf.make_optimizer(plan.override("optimizer", {"name": "sgd"}, by="you"), model, lr=1.0)
    loader = DataLoader(rows, **hf.dataloader_keywords(plan))
    prepared, optimizer, loader = accelerator.prepare(hf.prepare_model(plan, model), optimizer, loader)
    prepared.train()
    (window,) = hf.windows(loader, accelerator)
    for batch in window:
        window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
    hf.clip(plan, accelerator, prepared)
    optimizer.step()
    return Update(vector(model), before - vector(model, gradient=False))


Door = Callable[[Plan, Any, Rows], Update]
DOORS = pytest.mark.parametrize("door", [by_trainer, by_loop])


@pytest.fixture
def load(tiny: Path, tmp_path: Path) -> Callable[..., Any]:
    """Load a new copy of the tiny model, with keywords of from_pretrained; it writes to a folder of its own."""

    def load(**keywords: Any) -> Any:
        model = copy_of(tiny, **keywords)
        model.config.name_or_path = str(tmp_path)
        return model

    return load


@pytest.fixture(scope="module")
def unequal(rows: Rows) -> Rows:
    """Sixty-four rows of 2 to 16 tokens, the shortest first, padded to 16 with the label -100."""
    there = [torch.arange(16) < 2 + number * 15 // 64 for number in range(64)]
    return [
        {"input_ids": row["input_ids"] * t, "attention_mask": t.long(), "labels": row["labels"].where(t, -100)}
        for row, t in zip(rows, there, strict=True)
    ]


@DOORS
def test_eight_micro_batches_are_one_batch(door: Door, load: Any, unequal: Rows) -> None:
    """8 x 8 rows of unequal lengths make the update of one batch of 64; a mean of means is off by over a hundredth."""
    plan = hf.make_plan("batch_size(8, effective=64)", "gradient_clipping(0)")
    whole = plain(load(), [unequal])
    update = door(plan, load(), unequal)
    assert distance(update.gradient, whole) < 1e-5
    assert distance(update.change, whole) < 1e-5
    assert distance(plain(load(), [unequal[i : i + 8] for i in range(0, 64, 8)]), whole) > 1e-2


@DOORS
def test_autocast_computes_in_16_bits_and_keeps_32(door: Door, tmp_path: Path, rows: Rows, load: Any) -> None:
    """Under bf16 every linear layer puts out 16 bits, while weights and gradients stay in 32."""
    load(dtype=torch.bfloat16).save_pretrained(tmp_path / "stored_in_bf16")
    plan = hf.make_plan("bf16", "batch_size(64)")
    model = type(load()).from_pretrained(tmp_path / "stored_in_bf16", **plan["model"])
    outputs, gradients = set[torch.dtype](), set[torch.dtype]()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for module in linear:
        module.register_forward_hook(learning(lambda _module, _inputs, output: outputs.add(output.dtype)))
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: gradients.add(weight.grad.dtype))
    model.config.name_or_path = str(tmp_path)
    door(plan, model, rows)
    assert len(linear) == 15
    assert outputs == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == gradients == {torch.float32}


@DOORS
@pytest.mark.parametrize("limit", [1.0, 0.25, 1e9])
def test_clipping_keeps_the_direction(door: Door, load: Any, rows: Rows, limit: float) -> None:
    """A gradient of several hundred thousand comes down to the limit and keeps its direction; a smaller one stays."""

    def explode(model: Any) -> Any:
        model.lm_head.weight.data.mul_(5e5)  # so steep that the gradient below it explodes
        return model

    plan = hf.make_plan(f"gradient_clipping({limit})", "batch_size(64)")
    true = plain(explode(load()), [rows])
    assert 2e5 < true.norm() < 1e6
    clipped = door(plan, explode(load()), rows).gradient
    assert clipped.norm().item() == pytest.approx(min(limit, true.norm().item()), rel=1e-6)
    assert torch.cosine_similarity(clipped, true, dim=0).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.launch
def test_loss_scaling_saves_what_float16_loses(load: Any, rows: Rows) -> None:
    """Where an update has 100 million tokens, float16 gradients are all zero without loss scaling and right with it."""

    def gradient(scale: float, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        model = load()
        optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model(**default_data_collator(rows), num_items_in_batch=torch.tensor(1e8)).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return vector(model)

    right = gradient(1.0, torch.float32)
    assert right.count_nonzero() > 0.9 * len(right)
    assert gradient(1.0).count_nonzero() == 0
    assert distance(gradient(2.0**24), right) < 8 * torch.finfo(torch.float16).eps


def test_clip_sees_gradients_of_true_size(load: Any, rows: Rows) -> None:
    """Under fp16, `clip` divides the loss scale out first: it returns the true norm and clips that one."""
    plan = hf.make_plan("gradient_clipping(0.25)")
    accelerator = hf.make_accelerator(plan)
    # What accelerate does on a GPU; on a CPU its fp16 is a silent fp32 run.
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=2.0**16)
    accelerator.state._mixed_precision = "fp16"
    model = load()
    prepared, _ = accelerator.prepare(model, hf.make_optimizer(plan, model))
    accelerator.backward(prepared(**default_data_collator(rows)).loss)
    true = plain(load(), [rows]).norm().item()
    assert vector(model).norm().item() == pytest.approx(2**16 * true, rel=0.01)
    assert hf.clip(plan, accelerator, prepared).item() == pytest.approx(true, rel=0.01)
    assert vector(model).norm().item() == pytest.approx(0.25, rel=1e-5)  # torch divides by the norm + 1e-6


@DOORS
@pytest.mark.parametrize(("spelling", "passes"), [("activation_checkpointing", 4), ("activation_checkpointing(2)", 3)])
def test_checkpointing_recomputes_the_same(door: Door, load: Any, rows: Rows, spelling: str, passes: int) -> None:
    """The treated ones of two layers run twice, and every gradient is the same bit for bit, dropout included."""

    def run(*tricks: str, seed: int = 0) -> tuple[torch.Tensor, int]:
        model, calls = load(attention_dropout=0.5), []
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(learning(lambda *_: calls.append(1)))
        plan = hf.make_plan(*tricks, "batch_size(64)")
        set_seed(seed)
        update = door(plan.override("trainer", {"seed": seed}, by="you"), model, rows)
        return update.gradient, len(calls)

    kept, once = run()
    recomputed, again = run(spelling)
    assert (once, again) == (2, passes)
    assert torch.equal(kept, recomputed)
    assert not torch.equal(kept, run(seed=1)[0]), "without dropout this would show nothing"


class WhoRead(Rows):
    """Rows that say in which process they were read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "reader": os.getpid()}


def trainer_loader(plan: Plan, model: nn.Module, rows: WhoRead) -> Any:
    """Return the training batches of Trainer, shuffled."""
    args = hf.training_arguments(plan, output_dir=model.config.name_or_path, seed=1, remove_unused_columns=False)
    return Trainer(model=model, args=args, train_dataset=rows).get_train_dataloader()


def loop_loader(plan: Plan, model: nn.Module, rows: WhoRead) -> Any:
    """Return the batches of a hand-written loop, shuffled."""
    set_seed(1)
    loader = DataLoader(rows, shuffle=True, **hf.dataloader_keywords(plan))
    return hf.make_accelerator(plan).prepare(loader)


@pytest.mark.launch
@pytest.mark.parametrize(
    ("loader_of", "persistent"),
    [(trainer_loader, True), (trainer_loader, False), (loop_loader, True), (loop_loader, False)],
)
def test_workers_deliver_the_same_batches(loader_of: Any, persistent: bool, load: Any, rows: Rows) -> None:
    """Workers read the rows, and the same shuffled batches arrive in the same order as without them, in each epoch."""

    def epochs(spelling: str) -> tuple[list[list[Any]], set[int]]:
        loader = loader_of(hf.make_plan(spelling, "batch_size(8)"), load(), WhoRead(rows))
        batches = [list(loader) for _ in range(3)]
        readers = {pid for epoch in batches for batch in epoch for pid in batch["reader"].tolist()}
        return [[batch["input_ids"].tolist() for batch in epoch] for epoch in batches], readers

    alone, myself = epochs("data_loading(0)")
    ahead, workers = epochs(f"data_loading(2, persistent={persistent})")
    assert myself == {os.getpid()}
    assert len(workers - myself) >= 2
    assert alone[0] != alone[1] != alone[2]
    assert ahead == alone

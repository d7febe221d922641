"""Faults planted in a training, each of which `verify` has to find and name; and that none is found where none is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, get_scheduler

import hf_efficient as hf
from hf_efficient.plan import Plan
from hf_efficient.promises.heads import HEADS
from hf_efficient.promises.judge import Verdict
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.tiny import tiny_folder
from hf_efficient.trick import MethodCall, Trick

pytestmark = pytest.mark.launch  # a minute together

ACCUMULATED = "gradient_accumulation(4)"


def broken(verdicts: list[Verdict], name: str = ACCUMULATED) -> Verdict:
    """Return the verdict of that name, which has to be broken."""
    (found,) = [verdict for verdict in verdicts if verdict.name == name]
    assert found.verdict == "broken", verdicts
    assert found.why
    assert found.fix
    return found


def loop(
    *,
    divided: bool = False,
    asleep: bool = False,
    per_micro_batch: bool = False,
    dropped: bool = False,
    half: bool = False,
    unscaled: bool = True,
    zeroed: bool = True,
) -> Callable[..., list[float]]:
    """Return a hand-written loop of SGD on plain torch, which is right unless it is told to be wrong."""

    def train(plan: Plan, model: nn.Module, rows: Any, collate: Any) -> list[float]:
        steps = plan["accelerator"].get("gradient_accumulation_steps", 1)
        loader = DataLoader(rows, plan["dataloader"]["batch_size"], collate_fn=collate)
        updates = -(-len(loader) // steps)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = get_scheduler("linear", optimizer, 0, updates * (steps if per_micro_batch else 1))
        scaler = torch.amp.GradScaler("cpu", enabled=half, init_scale=2.0**16)
        batches, losses = list(loader), []
        if asleep:
            model.eval()
        for start in range(0, len(batches), steps):
            window = batches[start : start + steps]
            if dropped and len(window) < steps:
                break
            items = sum(int(batch["labels"][..., 1:].ne(-100).sum()) for batch in window)
            mean = 0.0
            for batch in window:
                with torch.autocast("cpu", torch.float16) if half else nullcontext():
                    loss = model(**batch, num_items_in_batch=torch.tensor(items)).loss
                mean += float(loss.detach())
                scaler.scale(loss / steps if divided else loss).backward()
                if per_micro_batch:
                    schedule.step()
            if unscaled:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            scaler.step(optimizer)
            scaler.update()
            if zeroed:
                optimizer.zero_grad()
            if not per_micro_batch:
                schedule.step()
            losses.append(mean)
        return losses

    return train


@pytest.mark.parametrize("head", ["llama", "gemma3"])
def test_a_right_loop_is_not_blamed(config_folder: Callable[[str], str], head: str) -> None:
    """A hand-written loop that counts items keeps every promise."""
    found = hf.verify(ACCUMULATED, "activation_checkpointing", model=config_folder(head), loop=loop())
    assert [verdict.verdict for verdict in found] == ["exact"] * 4, found
    assert max(verdict.gradient_diff for verdict in found) < 1e-5


LOOPS = {
    "double division": (loop(divided=True), "twice"),
    "a scheduler per micro-batch": (loop(per_micro_batch=True), "scheduler"),
    "a dropped last window": (loop(dropped=True), "last window"),
}


@pytest.mark.parametrize("fault", LOOPS)
def test_a_wrong_loop_is_found(config_folder: Callable[[str], str], fault: str) -> None:
    """What is wrong with accumulation in a loop is named, and the same loop without accumulation is not blamed."""
    wrong, word = LOOPS[fault]
    found = hf.verify(ACCUMULATED, model=config_folder("llama"), loop=wrong)
    assert word in broken(found).why
    assert found[0].verdict == "exact"


def test_evaluation_mode_is_found(config_folder: Callable[[str], str]) -> None:
    """`model.eval()` left on is named, with or without a trick, where the model drops something."""
    found = hf.verify(ACCUMULATED, model=config_folder("gpt2"), loop=loop(asleep=True))
    assert all("evaluation mode" in broken(found, name).why for name in ("no trick", ACCUMULATED))


def test_clipping_before_unscaling_is_found(config_folder: Callable[[str], str]) -> None:
    """fp16's gradients clipped while they are scaled are named; clipped after unscaling they are close enough."""
    name = "gradient_accumulation(2)"
    right = hf.verify(name, model=config_folder("llama"), loop=loop(half=True))
    assert "broken" not in [verdict.verdict for verdict in right], right
    wrong = hf.verify(name, model=config_folder("llama"), loop=loop(half=True, unscaled=False))
    assert "before they are unscaled" in broken(wrong, name).why


class NoItems(Trainer):
    """A Trainer whose loss is the mean of each micro-batch."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss."""
        outputs = model(**inputs)
        logits, labels = outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
        loss = nn.functional.cross_entropy(logits, labels)
        return (loss, outputs) if return_outputs else loss


def _mended(**keywords: Any) -> Trainer:
    trainer = NoItems(**keywords)
    hf.exact_accumulation(trainer)
    return trainer


def test_a_loss_without_items_is_found(config_folder: Callable[[str], str]) -> None:
    """A custom loss that drops num_items_in_batch is named, and is right after exact_accumulation."""
    assert "num_items_in_batch" in broken(hf.verify(ACCUMULATED, model=config_folder("llama"), trainer=NoItems)).why
    assert hf.verify(ACCUMULATED, model=config_folder("llama"), trainer=_mended)[1].verdict == "exact"


def test_a_loss_function_without_items_is_found(config_folder: Callable[[str], str]) -> None:
    """So is a compute_loss_func that drops it."""

    def mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def trainer(**keywords: Any) -> Trainer:
        return Trainer(**keywords, compute_loss_func=mean)

    assert "num_items_in_batch" in broken(hf.verify(ACCUMULATED, model=config_folder("llama"), trainer=trainer)).why


def test_reentrant_checkpointing_that_loses_gradients_is_found(config_folder: Callable[[str], str]) -> None:
    """Layers whose inputs require no gradient lose theirs under reentrant checkpointing."""
    keywords = {"activation_checkpointing_kwargs": {"use_reentrant": True}}
    reentrant = Trick(
        name="reentrant", family="checkpointing", saves="", costs="", numerics="exact", shows=("recomputed",),
        trainer={"activation_checkpointing": True, **keywords},
        prepare=MethodCall("activation_checkpointing_enable", keywords),
    )  # fmt: skip

    def frozen_embeddings(**keywords: Any) -> Trainer:
        keywords["model"].vit.embeddings.requires_grad_(False)
        return Trainer(**keywords)

    # transformers makes the inputs of models of text require a gradient by itself
    found = hf.verify(reentrant, model=config_folder("vit"), trainer=frozen_embeddings)
    assert "reentrant" in broken(found, "reentrant").fix
    assert found[0].verdict == "exact"


def test_packed_rows_with_a_full_mask_are_found(tmp_path: Path) -> None:
    """An attention mask of ones lets packed documents see each other."""
    tiny_folder(HEADS["llama"](), tmp_path)
    with tiny_subject(HEADS["llama"](), "llama", 30) as subject:

        def leaking(rows: Any) -> Any:
            if "seq_lengths" not in rows[0]:
                return subject.collator(Plan(), subject.load())(rows)
            batch = subject.collator(hf.make_plan("packing"), subject.load())(rows)
            return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}

        rows = [dict(row) for row in subject.rows]
        right = hf.verify("packing", model=subject.load(), data=rows, collator=None)
        wrong = hf.verify("packing", model=subject.load(), data=rows, collator=leaking)
    assert right[1].verdict == "exact"
    assert "see each other" in broken(wrong, "packing").why

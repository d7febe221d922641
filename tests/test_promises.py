"""Every trick keeps the promise of its `numerics` on a model that has learned something, through both doors.

`pytest -rP tests/test_promises.py` prints the distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import variants
from copies import copy_of
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

import hf_efficient as hf
from hf_efficient.emit.here import training_machine
from hf_efficient.plan import Plan
from hf_efficient.promises.doors import by_loop, by_trainer
from hf_efficient.promises.facts import FACTS
from hf_efficient.promises.judge import EPS, judge
from hf_efficient.promises.subject import Subject
from hf_efficient.promises.trial import Trial
from hf_efficient.promises.verify import verdicts
from hf_efficient.tricks import catalogue, defaults

SAMPLES = 64
NO_EFFECT_HERE = (
    "adamw_8bit(paged=True)",
    "lion_8bit(paged=True)",
    "data_loading(0)",
    "gradient_clipping",
    "gradient_clipping(0)",
)
"""Spellings that change nothing here: a CPU pages and pins nothing, and what has been learned has short gradients."""


def cases() -> Iterator[Any]:
    """Yield every trick with its defaults, and the variants that their tests name."""
    for spelling in [*catalogue(), *variants.VARIANTS]:
        marks = [pytest.mark.launch] if spelling in (*variants.NOT_FAST, *variants.VARIANTS) else []
        marks = [pytest.mark.slow] if spelling in variants.SLOW else marks
        yield pytest.param(spelling, marks=marks, id=spelling)


@pytest.fixture(scope="module")
def learned(tiny: Path, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Subject:
    """The tiny model after 30 updates on 64 rows of 2 to 15 tokens, the shortest first: the samples of one update.

    It is harder than random weights: as the gradients of the samples come to cancel, their sum shrinks and its rounding
    errors do not (bf16 is off by 0.7 eps before and by 4.6 eps after).
    """
    lengths = [2 + number * 14 // SAMPLES for number in range(SAMPLES)]
    tokens = [row["input_ids"].tolist()[:length] for row, length in zip(rows, lengths, strict=True)]
    samples = [{"input_ids": row, "labels": row} for row in tokens]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = copy_of(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(30):
        model(**hf.make_collator(Plan(), tokenizer)(samples)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("learned")
    model.save_pretrained(folder)
    return Subject(
        "learned",
        lambda **keywords: copy_of(folder, **keywords),
        samples,
        lambda plan, model: hf.make_collator(plan, tokenizer, model),
    )


@pytest.fixture(scope="module")
def trials(learned: Subject) -> dict[str, Trial]:
    """The learned model behind each door, all its samples in one update."""
    return {
        name: Trial(learned, door, update=SAMPLES)
        for name, door in {"trainer": by_trainer(), "loop": by_loop()}.items()
    }


@pytest.mark.parametrize("door", ["trainer", "loop"])
@pytest.mark.parametrize("spelling", list(cases()))
def test_promise(spelling: str, door: str, trials: dict[str, Trial]) -> None:
    """What the trick does to gradient and update is what it promises, and the run shows that it did something."""
    *_, found = verdicts(hf.make_plan(spelling), trials[door], training_machine())
    print(f"\n{spelling}, {door}: {found.verdict}, {found.why}")
    if found.verdict == "not exercised here" and found.gradient_diff is None:
        pytest.skip(found.why)
    wanted = "not exercised here" if spelling in NO_EFFECT_HERE or _evaluates(spelling, door) else found.promise
    assert found.verdict == wanted, found


def _evaluates(spelling: str, door: str) -> bool:
    """Say whether a trick is about evaluation, and the door evaluates nothing."""
    return spelling.startswith("evaluation") and door == "loop"


def _fp16_loop(plan: Plan, model: nn.Module, rows: Any, collate: Any) -> list[float]:
    """Train one update under torch's own autocast and loss scaling, since the stack's fp16 is fp32 on a CPU."""
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for batch in DataLoader(rows, batch_size=len(rows), collate_fn=collate):
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    return [float(loss.detach())]


def test_fp16_by_hand(learned: Subject) -> None:
    """fp16 under torch alone is as near as the trick promises, and farther off than fp32 could be."""
    (within,) = [trick.within for trick in defaults() if trick.name == "fp16"]
    found = judge("fp16 by hand", Plan(), Trial(learned, by_loop(_fp16_loop), ours=False, update=SAMPLES))
    print(f"\nfp16: {found.gradient_diff / EPS['float16']:.2f} eps of float16, promises {within.multiple}")
    assert EPS["float16"] / 20 < found.gradient_diff <= within.multiple * EPS["float16"]
    assert found.verdict == "close"


@pytest.mark.parametrize("trick", defaults(), ids=lambda trick: trick.name)
def test_a_trick_says_how_it_shows(trick: Any) -> None:
    """A trick names what of a run it changes, unless it never runs in one process; `close` says within how much."""
    assert set(trick.shows) <= set(FACTS)
    assert trick.shows or trick.family in ("sharding", "loss"), f"{trick.name} names nothing of {FACTS} in `shows`"
    assert (trick.numerics == "close") == bool(trick.within)

"""`verify`: what its verdicts say, on which heads, and what its command prints and returns."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, Trainer
from transformers.utils import logging

import hf_efficient as hf
from hf_efficient.cli import main
from hf_efficient.emit.here import training_machine
from hf_efficient.merge import make_plan
from hf_efficient.presets import PRESETS
from hf_efficient.promises.doors import by_loop, by_trainer
from hf_efficient.promises.heads import HEADS
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.trial import Trial
from hf_efficient.promises.verify import WHOLE, verdicts
from hf_efficient.tricks import catalogue

pytestmark = pytest.mark.launch  # seconds in all: not in `make test-fast`

SLOW = ("compile", "adamw_torchao_8bit", "adamw_torchao_4bit")
"""Tricks that compile for half a minute; `make promises` tries them on every head."""


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gpt2", "bert", "smolvlm"])
def test_every_trick_keeps_its_promise(head: str) -> None:
    """On a head of each kind no promise is broken, and few tricks show nothing."""
    machine = training_machine()
    with tiny_subject(HEADS[head](), head, 30) as subject:
        trial, silent = Trial(subject, by_trainer()), 0
        for name in [name for name in catalogue() if name not in SLOW]:
            nothing, found = verdicts(make_plan(name), trial, machine)
            assert nothing.verdict == "exact"
            assert found.verdict != "broken", found
            silent += found.verdict in ("not exercised here", "does not apply")
    assert silent <= len(catalogue()) / 3


@pytest.mark.parametrize("head", ["qwen3-moe-balanced"])
def test_what_no_accumulation_can_keep_is_said(head: str) -> None:
    """The loss that balances experts is no mean over items: accumulation is called broken, and why."""
    with tiny_subject(HEADS[head](), head, 30) as subject:
        _, found = verdicts(make_plan("gradient_accumulation"), Trial(subject, by_trainer()), training_machine())
    assert found.verdict == "broken"
    assert "counts once per micro-batch" in found.why


@pytest.mark.launch
@pytest.mark.parametrize("head", ["gpt2", "roberta", "whisper"])
def test_a_hand_written_loop_keeps_them_too(head: str) -> None:
    """The loop of the README keeps the promises of what changes the order of its work, whatever the head."""
    with tiny_subject(HEADS[head](), head, 30) as subject:
        trial = Trial(subject, by_loop())
        plan = make_plan("gradient_accumulation(4)", "activation_checkpointing", "pad_to_multiple(16)", "adamw_fused")
        found = list(verdicts(plan, trial, training_machine()))
    assert {verdict.verdict for verdict in found} <= {"exact", "not exercised here"}, found
    assert found[-1].verdict == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gpt2", "bert"])
@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_is_blamed(name: str, head: str) -> None:
    """No trick of a preset, nor the whole of it, is called broken."""
    without = ("compile",) if any(trick.name == "compile" for trick in PRESETS[name].tricks) else ()
    with tiny_subject(HEADS[head](), head, 60) as subject:
        found = list(verdicts(make_plan(name, without=without), Trial(subject, by_trainer()), training_machine()))
    assert not [verdict for verdict in found if verdict.verdict == "broken"], found


def test_what_is_not_made_for_a_head_does_not_apply(config_folder: Callable[[str], str]) -> None:
    """packing has no promise for a classifier, and its arguments are refused in the same sentence."""
    found = hf.verify("packing", "pad_to_multiple", model=config_folder("roberta"))
    assert [verdict.verdict for verdict in found] == ["exact", "does not apply", "exact", "exact"]
    with tiny_subject(HEADS["roberta"](), "roberta", 3) as subject:
        model = subject.load()
    for refused in (
        lambda: hf.training_arguments(make_plan("packing"), output_dir="unused", model=model),
        lambda: hf.training_arguments(make_plan("packing"), output_dir="unused", model=type(model)),
        lambda: hf.add_adapter(make_plan("packing"), model),
        lambda: hf.prepare_model(make_plan("packing"), model),
    ):
        with pytest.raises(ValueError, match="packing is made for causal language models, and RobertaForSeq"):
            refused()
    assert "RobertaForSequenceClassification" in found[1].why


def test_what_this_machine_cannot_show_is_not_called_kept(config_folder: Callable[[str], str]) -> None:
    """Without an accelerator fp16, tf32 and paged or pinned memory are not exercised, and the whole plan says so."""
    names = ("fp16", "tf32", "adamw_8bit(paged=True)", "data_loading(0)")
    found = hf.verify(*names, model=config_folder("llama"))
    assert {verdict.name: verdict.verdict for verdict in found[1:-1]} == dict.fromkeys(names, "not exercised here")
    assert found[-1].name == WHOLE
    assert found[-1].verdict == "not exercised here"


def test_a_pass_with_dropout_is_reported_without_a_verdict_where_samples_are_regrouped(
    config_folder: Callable[[str], str],
) -> None:
    """Accumulation draws other masks than one batch and is far off with dropout; checkpointing draws the same."""
    _, accumulated, checkpointed, _ = hf.verify(
        "gradient_accumulation(4)", "activation_checkpointing", model=config_folder("bert")
    )
    assert accumulated.verdict == checkpointed.verdict == "exact"
    assert accumulated.dropout["gradient_diff"] > 0.1
    assert checkpointed.dropout["gradient_diff"] < 1e-5


def test_your_module_and_your_rows(tiny: Path, rows: list[dict[str, Any]]) -> None:
    """A module of yours is copied and its weights stay as they are; too few rows are refused."""
    model = AutoModelForCausalLM.from_pretrained(tiny)
    before = model.lm_head.weight.clone()
    found = hf.verify("gradient_accumulation(2)", model=model, data=rows[:21])
    assert [verdict.verdict for verdict in found] == ["exact", "exact"]
    assert torch.equal(model.lm_head.weight, before)
    with pytest.raises(ValueError, match="At least 3 rows"):
        hf.verify("bf16", model=model, data=rows[:2])
    with pytest.raises(ValueError, match="needs rows of its inputs"):
        hf.verify("bf16", model=model)


def test_your_model_and_your_texts(tiny: Path, tmp_path: Path) -> None:
    """A file of texts trains the model itself, and only a causal language model."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(" ".join(f"w{word}" for word in range(3, 8 + 3 * row)) for row in range(12)))
    found = hf.verify("gradient_accumulation(4)", model=str(tiny), data=str(texts))
    assert [verdict.verdict for verdict in found] == ["exact", "exact"]


def test_a_process_is_left_as_it_was(config_folder: Callable[[str], str]) -> None:
    """Random numbers, accelerate's state, switches and environment are those from before."""
    import os

    environment = dict(os.environ)
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()
    hf.verify("bf16", "tf32", model=config_folder("llama"))
    assert states[0] == random.getstate()
    assert states[1] == numpy.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    assert dict(os.environ) == environment
    assert AcceleratorState._shared_state == {}


def test_what_a_loop_leaves_behind_is_put_back(config_folder: Callable[[str], str]) -> None:
    """A loop that stops is said to stop, and neither its switches nor quiet progress bars outlive it."""

    def stops(*_: Any) -> None:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("no such batch")

    logging.disable_progress_bar()
    try:
        with pytest.raises(ValueError, match=r"What you passed cannot train .* no such batch"):
            hf.verify("bf16", model=config_folder("llama"), loop=stops)
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_two_doors_are_refused(config_folder: Callable[[str], str]) -> None:
    """A door that there is not, and two at once, are refused in a sentence."""
    for keywords in ({"door": "lop"}, {"trainer": Trainer, "loop": print}, {"trainer": Trainer, "door": "loop"}):
        with pytest.raises(ValueError, match="One door at a time"):
            hf.verify("bf16", model=config_folder("llama"), **keywords)


def test_the_command(config_folder: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a row per verdict or the JSON of the design, and returns 0, 1 for broken, 2 for bad usage."""
    assert main(["verify", "--model", config_folder("llama"), "gradient_accumulation(4)"]) == 0
    assert "gradient_accumulation(4)  exact" in capsys.readouterr().out
    balanced = ["verify", "--model", config_folder("qwen3-moe-balanced"), "gradient_accumulation(4)"]
    assert main([*balanced, "--json"]) == 1
    (nothing, found) = json.loads(capsys.readouterr().out)["verdicts"]
    assert {"name", "promise", "verdict", "loss_diff", "gradient_diff", "update_diff", "why", "fix"} <= set(found)
    assert (nothing["verdict"], found["verdict"]) == ("exact", "broken")
    assert main(["verify", "--model", "./nowhere", "bf16"]) == 2
    assert main(["verify", "--model", config_folder("llama"), "bf61"]) == 2
    assert "error: " in capsys.readouterr().err

"""What exact_accumulation leaves alone, and that trying leaves no trace."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
import transformers as tf
from heads import HEADS
from losses import COUPLED, DRAWN, Holding, Own, Restless, Stream, Weighed, drawing, drawing_by_default
from numpy.random import default_rng, get_state
from trained import assert_equal, big_batch, model_of, trainer_of, update_of, weights

import hf_efficient as hf


@pytest.mark.parametrize("name", COUPLED)
def test_what_is_no_mean_over_items_is_said_and_left(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where accumulation changes the training, one sentence gives the reason, and the trainer stays as it was."""
    build, rows, more, reason = COUPLED[name]
    trainer = trainer_of(model_of(build), rows(), tmp_path, gradient_accumulation_steps=4, **more)
    report = hf.exact_accumulation(trainer)
    assert not report.mended
    assert report.found.startswith(f"Accumulation changes how {name} trains: ")
    assert reason in report.found
    assert not {"compute_loss", "get_batch_samples"} & vars(trainer).keys()
    assert str(report) in capsys.readouterr().out


@pytest.mark.parametrize("collator", [None, "mlm"])
def test_a_trainer_that_is_right_trains_bit_by_bit_the_same(collator: str | None, tiny: Path, tmp_path: Path) -> None:
    """With dropout and random masks, a call that mends nothing leaves no trace in weights or random numbers."""
    tokenizer = tf.AutoTokenizer.from_pretrained(tiny)
    tokenizer.mask_token = "w1"
    ended = []
    for called in (False, True):
        tf.set_seed(0)
        steps = 1 if collator else 4
        name = "BertForMaskedLM" if collator else "LlamaForCausalLM"
        size = {"vocab_size": 128, "attention_dropout": 0.1} | ({} if collator else {"num_key_value_heads": 1})
        model = heads.made(name, **(heads.SMALL | size))()
        rows = heads.tokens() if collator else heads.causal()
        collate = tf.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4) if collator else None
        flags = {"gradient_accumulation_steps": steps, "max_steps": 3, "train_sampling_strategy": "random"}
        trainer = trainer_of(model, rows, tmp_path, data_collator=collate, per_device_train_batch_size=2, **flags)
        before = dict(vars(trainer))
        if called:
            assert not hf.exact_accumulation(trainer).mended
            assert vars(trainer) == before
        trainer.train()
        ended.append((weights(model), torch.rand(1), torch.get_rng_state()))
    assert all(torch.equal(plain, tried) for plain, tried in zip(*ended, strict=True))


@pytest.mark.launch
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "roberta", "t5"])
def test_rows_that_can_be_read_once_are_tried_in_the_first_window(name: str, size: int, tmp_path: Path) -> None:
    """Nothing is taken from a stream for the trial: its first window is the big batch of its first rows."""
    head = HEADS[name]
    model, rows = model_of(head.build), head.rows()[: 4 * size]
    flags = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 4, "train_sampling_strategy": "random"}
    trainer = trainer_of(copy.deepcopy(model), Stream(list(rows)), tmp_path, **flags)
    first = hf.exact_accumulation(trainer)
    assert "first window" in first.done
    assert_equal(update_of(trainer), big_batch(model, rows))
    known = hf.exact_accumulation(trainer)
    assert (known.mended, known.factor) == (name != "llama", pytest.approx(head.factor))
    assert ("get_batch_samples" in vars(trainer)) == known.mended


def test_twice_mends_once(tmp_path: Path) -> None:
    """A second call returns the first one's report, and the update stays that of the big batch."""
    model, rows = model_of(HEADS["bert"].build), HEADS["bert"].rows()[:8]
    trainer = trainer_of(
        copy.deepcopy(model), rows, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    assert hf.exact_accumulation(trainer) is hf.exact_accumulation(trainer)
    assert_equal(update_of(trainer), big_batch(model, rows))


def test_several_gpus_in_one_process_are_refused(tmp_path: Path) -> None:
    """DataParallel hides what each GPU counts, and the sentence names the launcher that does not."""
    trainer = trainer_of(model_of(HEADS["bert"].build), heads.causal(), tmp_path, gradient_accumulation_steps=4)
    trainer.args._n_gpu = 2
    report = hf.exact_accumulation(trainer)
    assert not report.mended
    assert "accelerate launch" in report.found


def test_a_trial_keeps_no_notes(tmp_path: Path) -> None:
    """What a compute_loss of the user writes down during the trial is taken back."""
    trainer = trainer_of(
        model_of(HEADS["llama"].build), heads.causal(), tmp_path, kind=Own, gradient_accumulation_steps=2
    )
    notes = trainer.notes
    hf.exact_accumulation(trainer)
    assert (trainer.notes is notes, notes, trainer.calls) == (True, [], 0)


def test_a_trial_leaves_what_a_trainer_holds(tmp_path: Path) -> None:
    """Models in lists stay the same ones, tensors in dicts are no error, and notes that are new are gone again."""
    trainer = trainer_of(
        model_of(HEADS["llama"].build), heads.causal(), tmp_path, kind=Holding, gradient_accumulation_steps=2
    )
    teacher, before = trainer.teachers[0], dict(vars(trainer))
    hf.exact_accumulation(trainer)
    assert trainer.teachers[0] is teacher
    assert [trainer.drawn[0].random(), trainer.drawn[2].random()] == [
        random.Random(0).random(),
        default_rng(0).random(),
    ]
    assert torch.rand(1, generator=trainer.drawn[1]) == torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert (vars(trainer), trainer.seen.item(), trainer.weights["of"][0].tolist()) == (before, 0, [1, 2])


def test_batch_norm_is_seen_before_the_model_trains(tmp_path: Path) -> None:
    """`from_pretrained` leaves a model evaluating, and Trainer trains it all the same."""
    build, rows, more, reason = COUPLED["Normed"]
    trainer = trainer_of(model_of(build).eval(), rows(), tmp_path, gradient_accumulation_steps=4, **more)
    assert reason in hf.exact_accumulation(trainer).found
    assert not any(module.training for module in trainer.model.modules())


def test_a_trial_keeps_numbers_buffers_modes_and_forward(tmp_path: Path) -> None:
    """Random numbers, buffers that are changed or exchanged, modes and a prepared forward are as before."""
    flags = {"gradient_accumulation_steps": 2, "remove_unused_columns": False}
    trainer = trainer_of(model_of(Restless).eval(), heads.causal(), tmp_path, **flags)
    model, called = trainer.model, []
    model.drop.train()
    model._original_forward, model.forward = model.forward, lambda **batch: called.append(0)
    longer, forward = model.longer, model.forward
    before = random.getstate(), numpy_state(), torch.get_rng_state()
    assert hf.exact_accumulation(trainer).mended
    assert (random.getstate(), numpy_state(), model.forward, called) == (*before[:2], forward, [])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (model.longer is longer, model.calls.item(), longer.tolist()) == (True, 0, [0])
    assert [module.training for module in model.modules()] == [module is model.drop for module in model.modules()]


def numpy_state() -> str:
    """Return numpy's global state."""
    return str(get_state()[1:3])


@pytest.mark.parametrize("collate", [drawing, drawing_by_default])
def test_generators_of_a_collating_function_are_left_alone(collate: Any, tmp_path: Path) -> None:
    """A function that draws from a generator of its own is not called before the training calls it."""
    generator = DRAWN if collate is drawing else collate.__defaults__[0]
    before = generator.getstate()
    trainer = trainer_of(model_of(HEADS["bert"].build), heads.causal(), tmp_path, data_collator=collate)
    assert "first window" in hf.exact_accumulation(trainer).done
    assert generator.getstate() == before


def test_sorted_rows_do_not_hide_the_weights_of_classes(tmp_path: Path) -> None:
    """Where the first rows are of one class, a mean that is weighed by classes is still told from one that is not."""
    model, rows = model_of(HEADS["roberta"].build), sorted(HEADS["roberta"].rows(), key=lambda row: int(row["labels"]))
    trainer = trainer_of(model, rows, tmp_path, kind=Weighed, gradient_accumulation_steps=4)
    assert "is not a mean over items" in hf.exact_accumulation(trainer).found


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "roberta", "t5"])
def test_first_rows_without_labels_are_tried_with_some(name: str, whole: bool, size: int, tmp_path: Path) -> None:
    """What has no labels, in the rows or the window that are tried, does not keep a trainer from being mended."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    rows = [{**row, "labels": torch.full_like(row["labels"], -100)} if n < 7 else row for n, row in enumerate(rows)]
    flags = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size}
    order = {} if whole else {"train_sampling_strategy": "random"}
    trainer = trainer_of(copy.deepcopy(model), rows if whole else Stream(list(rows)), tmp_path, **flags, **order)
    hf.exact_accumulation(trainer)
    assert_equal(update_of(trainer), big_batch(model, rows))
    report = hf.exact_accumulation(trainer)
    assert report.mended == (name != "llama")
    assert report.factor


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rows_that_look_alike_do_not_hide_a_wrong_count(name: str, tmp_path: Path) -> None:
    """Without labels for the first tokens of the first rows both ways to count agree on them, and not on later rows."""
    head = HEADS[name]
    model, rows = (
        model_of(head.build),
        [{key: torch.as_tensor(value).clone() for key, value in row.items()} for row in head.rows()[:16]],
    )
    for row in rows[:8]:
        row["labels"][0] = -100
    flags = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    trainer = trainer_of(copy.deepcopy(model), rows, tmp_path, **flags)
    assert hf.exact_accumulation(trainer).mended == (name == "gpt2")
    assert_equal(update_of(trainer), big_batch(model, rows))

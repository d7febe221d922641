"""exact_accumulation: every head's update of unequal micro-batches is that of one big batch, or it says why not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
import transformers as tf
from heads import HEADS, without_dropout
from torch import nn
from torch.utils.data import default_collate
from trained import assert_equal, big_batch, trainer_of, update_of, weights

import hf_efficient as hf

Rows = list[dict[str, Any]]


def model_of(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a model without dropout, always the same."""
    torch.manual_seed(0)
    return without_dropout(build()).train()


def mended_update(model: nn.Module, rows: Rows, folder: Path, **more: Any) -> tuple[torch.Tensor, Any]:
    """Return the update of a mended trainer, and what it said."""
    trainer = trainer_of(copy.deepcopy(model), rows, folder, **more)
    report = hf.exact_accumulation(trainer)
    return update_of(trainer), report


@pytest.mark.launch
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_every_head_moves_as_with_one_big_batch(name: str, size: int, tmp_path: Path) -> None:
    """Four unequal micro-batches are one big batch; the stock Trainer is off by the head's own factor."""
    head, names = HEADS[name], ["targets"] if name == "distances" else None
    model, rows = model_of(head.build), head.rows()[: 4 * size]
    flags: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 4,
        "label_names": names,
    }
    whole = big_batch(model, rows)
    stock = update_of(trainer_of(copy.deepcopy(model), rows, tmp_path, **flags))
    update, report = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, whole)
    assert report.factor == pytest.approx(head.factor, abs=1e-6)
    assert (stock.norm() / whole.norm()).item() == pytest.approx(head.factor, rel=0.2)
    right = ("llama", "qwen3", "gemma3", "mixtral", "llava", "vit")
    assert report.mended == (name not in right)
    if name in right:
        assert torch.equal(stock, update)


@pytest.mark.launch
@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", "regression", "t5", "answers", "plain"])
def test_an_uneven_last_window_counts_itself(name: str, tmp_path: Path) -> None:
    """Ten rows in micro-batches of two and windows of three leave a window of two, which is its own big batch."""
    head = HEADS[name]
    model, rows = model_of(head.build), head.rows()[:10]
    first = big_batch(model, rows[:6])
    moved = copy.deepcopy(model)
    with torch.no_grad():
        trained = [weight for weight in moved.parameters() if weight.requires_grad]
        for weight, step in zip(trained, first.split([weight.numel() for weight in trained]), strict=True):
            weight -= step.view_as(weight).float()
    expected = first + big_batch(moved, rows[6:])
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_steps": 2}
    assert_equal(mended_update(model, rows, tmp_path, **flags)[0], expected)


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


def unshifted(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss of a causal model over labels that are not shifted."""
    logits = model(input_ids=batch["input_ids"]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def _loss_func(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    kind = "mean" if num_items_in_batch is None else "sum"
    loss = nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction=kind)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def _needs_items(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs["logits"].flatten(0, 1)
    return nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch


def _drops_items(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


LOSSES = [
    ("llama", {"kind": Own}, 4),
    (
        "llama",
        {"compute_loss_func": _loss_func},
        7 / 4,
    ),  # stock counts labels as if they were shifted: the first three rows have 2, 2 and 3
    ("bert", {"compute_loss_func": _loss_func}, 1),
    ("bert", {"compute_loss_func": _needs_items}, 1),
    ("bert", {"compute_loss_func": _drops_items}, 4),
]


@pytest.mark.parametrize(("name", "more", "factor"), LOSSES)
def test_losses_of_your_own_are_tried_too(name: str, more: dict[str, Any], factor: float, tmp_path: Path) -> None:
    """A subclass's compute_loss and a compute_loss_func, with and without the number of items, make the big batch."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, **more}
    update, report = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows, loss_of=unshifted))
    assert (report.mended, report.factor) == (factor != 1, pytest.approx(factor))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "roberta"])
def test_label_smoothing_is_exact(name: str, tmp_path: Path) -> None:
    """With label smoothing, four micro-batches are one big batch by Trainer's own smoother."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    smooth = tf.trainer_pt_utils.LabelSmoother(0.1)

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        labels = batch.pop("labels")
        return smooth(model(**batch), labels, shift_labels=name in ("llama", "gpt2"))

    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "label_smoothing_factor": 0.1}
    update, _ = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows, loss_of=loss_of))


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


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows that can be read only once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        """Give the rows away."""
        while self.rows:
            yield self.rows.pop(0)


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


@pytest.mark.parametrize("name", ["bert", "t5", "distilbert"])
def test_a_micro_batch_without_labels_adds_nothing(name: str, tmp_path: Path) -> None:
    """Where a micro-batch has no labels, whose mean is 0 / 0, the update is that of the others and finite."""
    model, rows = model_of(HEADS[name].build), HEADS[name].rows()[:8]
    for row in rows[2:4]:
        row["labels"] = torch.full_like(row["labels"], -100)
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    update, _ = mended_update(model, rows, tmp_path, **flags)
    assert_equal(update, big_batch(model, rows))


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_weights_in_16_bits_are_tried_too(name: str, tmp_path: Path) -> None:
    """The rounding of a loss in bfloat16 is not taken for rows that depend on each other."""
    trainer = trainer_of(model_of(HEADS[name].build).bfloat16(), HEADS[name].rows(), tmp_path, bf16=True,
                         gradient_accumulation_steps=4)  # fmt: skip
    report = hf.exact_accumulation(trainer)
    assert (report.mended, report.factor) == (True, pytest.approx(HEADS[name].factor))


def test_several_gpus_in_one_process_are_refused(tmp_path: Path) -> None:
    """DataParallel hides what each GPU counts, and the sentence names the launcher that does not."""
    trainer = trainer_of(model_of(HEADS["bert"].build), heads.causal(), tmp_path, gradient_accumulation_steps=4)
    trainer.args._n_gpu = 2
    report = hf.exact_accumulation(trainer)
    assert not report.mended
    assert "accelerate launch" in report.found


def test_a_report_is_a_sentence_with_the_factor(tmp_path: Path) -> None:
    """What stock Trainer would have done, why, and what was done about it."""
    trainer = trainer_of(model_of(HEADS["bert"].build), heads.causal(), tmp_path, gradient_accumulation_steps=4)
    assert str(hf.exact_accumulation(trainer)) == (
        "BertForMaskedLM drops num_items_in_batch: stock Trainer would multiply loss and gradient by 4 (4 accumulation "
        "steps). Each of the labels of an update counts the same now."
    )


def test_the_evaluation_loss_of_a_mended_trainer_is_the_mean(tmp_path: Path) -> None:
    """What a mended trainer evaluates is the mean loss of the batch, not what training weighs."""
    model, rows = model_of(HEADS["bert"].build), HEADS["bert"].rows()[:8]
    flags = {"gradient_accumulation_steps": 4, "per_device_eval_batch_size": 8}
    trainer = trainer_of(model, rows, tmp_path, eval_dataset=rows, **flags)
    hf.exact_accumulation(trainer)
    with torch.no_grad():
        expected = model.eval()(**default_collate(rows)).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_trial_keeps_no_notes(tmp_path: Path) -> None:
    """What a compute_loss of the user writes down during the trial is taken back."""
    trainer = trainer_of(
        model_of(HEADS["llama"].build), heads.causal(), tmp_path, kind=Own, gradient_accumulation_steps=2
    )
    notes = trainer.notes
    hf.exact_accumulation(trainer)
    assert (trainer.notes is notes, notes, trainer.calls) == (True, [], 0)


@pytest.mark.launch
def test_adapters_are_tried_through_their_wrapper(tmp_path: Path) -> None:
    """A model with LoRA moves as with one big batch."""
    peft = pytest.importorskip("peft")
    rows = HEADS["bert"].rows()[:8]
    config = peft.LoraConfig(target_modules=["query"], init_lora_weights=False)
    model = peft.get_peft_model(model_of(HEADS["bert"].build), config)
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "label_names": ["labels"]}
    # Gradients of adapters are small beside their weights; a larger step keeps them above the weights' rounding.
    update, report = mended_update(model, rows, tmp_path, **flags, learning_rate=1e4)
    assert_equal(update, 1e4 * big_batch(model, rows))
    assert report.factor == 4

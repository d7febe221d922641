"""The parts of a hand-written loop: what the recipe calls, evaluation, length, clock, loading and saving."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hf_efficient as hf
from hf_efficient.train import evaluate, run_clock
from hf_efficient.train.load import load_causal_lm
from hf_efficient.train.loop_fields import run_length

ROOT = Path(__file__).parents[1]


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """A tiny model, twenty texts and four updates."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(20)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return ["--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "4"]


def test_the_loop_schedules_clips_decays_and_prepares(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One clip and one scheduler step per update, weight decay as asked, and the plan's hook on the model."""
    main = runpy.run_path(str(ROOT / "recipes" / "accelerate_loop.py"))["main"]
    seen: dict[str, Any] = {"clips": 0}
    stock_clip, stock_optimizer = hf.clip, hf.make_optimizer

    def clip(*args: Any) -> Any:
        seen["clips"] += 1
        return stock_clip(*args)

    def make_optimizer(plan: Any, model: Any, **keywords: Any) -> Any:
        seen["model"], seen["optimizer"] = model, stock_optimizer(plan, model, **keywords)
        return seen["optimizer"]

    monkeypatch.setattr(hf, "clip", clip)
    monkeypatch.setattr(hf, "make_optimizer", make_optimizer)
    main([*flags, "--plan", "safe", "activation_checkpointing", "--weight_decay", "0.1", "--warmup_steps", "1"])
    groups = seen["optimizer"].param_groups
    assert seen["clips"] == 4
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [group["lr"] for group in groups] == [0.0, 0.0], "a linear schedule ends at 0 after its last update"
    assert seen["model"].is_activation_checkpointing


@pytest.mark.launch
def test_a_compiled_loop_saves_a_model_that_loads(flags: list[str], tmp_path: Path) -> None:
    """torch.compile's names are not in the file: every weight is found again."""
    from transformers import AutoModelForCausalLM

    main = runpy.run_path(str(ROOT / "recipes" / "accelerate_loop.py"))["main"]
    main([*flags, "--plan", "safe", "compile('eager')"])
    _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_a_window_knows_its_mean_loss(tiny: Path, rows: list[dict[str, Any]]) -> None:
    """After its micro-batches, `loss` is the mean over the labels of the window."""
    from torch.utils.data import DataLoader

    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)"))
    model, loader = accelerator.prepare(
        load_causal_lm(str(tiny), hf.make_plan())[1], DataLoader(rows[:8], batch_size=4)
    )
    (window,) = hf.windows(loader, accelerator)
    losses = []
    for batch in window:
        losses.append(model(**batch).loss.item())
        window.backward(model(**batch, num_items_in_batch=window.items).loss)
    assert window.loss.item() == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_evaluation_counts_labels_and_no_dropout(tiny: Path) -> None:
    """Each label counts once, a row without labels not at all, and the model's mode is put back."""
    accelerator = hf.make_accelerator(hf.make_plan())
    model = load_causal_lm(str(tiny), hf.make_plan())[1]
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model = accelerator.prepare(model).train()
    tokens = torch.randint(3, 128, (3, 8), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[1] = -100
    labels[2, 4:] = -100
    batches = [{"input_ids": tokens[i : i + 1], "labels": labels[i : i + 1]} for i in range(3)]
    loss = evaluate.mean_label_loss(model, batches, accelerator)
    assert model.training
    model.eval()
    whole = model(input_ids=tokens, labels=labels).loss.item()
    assert loss == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(("rank", "kept"), [(0, 1), (1, 0)])
def test_rows_that_accelerate_repeats_do_not_count(rank: int, kept: int) -> None:
    """Five rows in batches of two on two processes: the last round has one real row, the rest are repeats."""
    state = SimpleNamespace(end_of_dataloader=True, remainder=1)
    accelerator = SimpleNamespace(gradient_state=state, process_index=rank)
    batch = {"labels": torch.ones(2, 4, dtype=torch.long)}
    labels = evaluate._without_repeated_rows(batch, accelerator)["labels"]  # type: ignore[arg-type]
    assert (labels == 1).all(dim=1).sum() == kept
    state.end_of_dataloader = False
    assert evaluate._without_repeated_rows(batch, accelerator) is batch  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 7}, (7, 0)),
        ({"num_train_epochs": 2.0}, (6, 0)),
        ({"num_train_epochs": 0.5}, (2, 0)),
        ({"max_steps": 30, "warmup_steps": 0.05}, (30, 2)),
        ({"max_steps": 30, "warmup_steps": 3}, (30, 3)),
    ],
)
def test_a_run_is_as_long_as_trainers(options: dict[str, Any], expected: tuple[int, int]) -> None:
    """Nine batches in windows of four: three updates an epoch; a share of warm-up is rounded up."""
    asked = {"max_steps": -1, "num_train_epochs": 1.0, "warmup_steps": 0} | options
    assert run_length(asked, 9, 4) == expected


def test_the_clock_counts_updates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations and saves are left out, and a resumed run counts its own epochs only."""
    now = [0.0]
    monkeypatch.setattr(run_clock.time, "perf_counter", lambda: now[0])
    clock, state = run_clock.RunClock(), SimpleNamespace(epoch=1.0)
    clock.on_train_begin(None, state, None)
    now[0] = 100.0
    clock.on_evaluate(None, state, None, metrics={"eval_loss": 3.0})
    now[0], state.epoch = 102.0, 1.5
    clock.on_step_end(None, state, None)
    now[0] = 150.0
    clock.on_save(None, state, None)
    now[0], state.epoch = 153.0, 2.0
    clock.on_step_end(None, state, None)
    now[0] = 200.0
    clock.on_evaluate(None, state, None, metrics={"eval_loss": 2.0})
    assert (clock.seconds, clock.epochs, clock.first_loss) == (5.0, 1.0, 3.0)
    assert clock.tokens_per_second(1000) == 200.0


def test_the_plan_decides_the_dtype_of_the_weights(tiny: Path, tmp_path: Path) -> None:
    """A bf16 checkpoint is loaded in float32 under the bf16 trick, and as it is without."""
    tokenizer, model = load_causal_lm(str(tiny), hf.make_plan())
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_causal_lm(str(tmp_path), hf.make_plan("bf16"))[1].dtype == torch.float32
    assert load_causal_lm(str(tmp_path), hf.make_plan())[1].dtype == torch.bfloat16


def test_a_head_that_drops_the_items_is_warned_about() -> None:
    """Most other heads take num_items_in_batch and ignore it: their mean losses would add up."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)"))
    accelerator.prepare(BertForSequenceClassification(config))
    batch = {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([0])}
    with pytest.warns(UserWarning, match="may ignore num_items_in_batch"):
        list(hf.windows([batch], accelerator))


def test_a_learning_rate_that_is_a_tensor_is_written(tmp_path: Path) -> None:
    """torchao's optimizers keep theirs so, and a checkpoint's JSON has the scheduler's."""
    from hf_efficient.train.checkpoints import read_run, write_run

    write_run(tmp_path, {"scheduler": {"_last_lr": [torch.tensor(0.5)]}})
    assert read_run(tmp_path) == {"scheduler": {"_last_lr": [0.5]}}


def test_a_trainer_whose_evaluation_is_exact_is_freed_with_its_last_name() -> None:
    """A cycle would keep model and workers until the garbage is collected."""
    import weakref

    class Trainer:
        label_smoother = compute_loss_func = None

        def evaluation_loop(self, dataloader: Any, metric_key_prefix: str = "eval") -> Any:
            return SimpleNamespace(metrics={})

    trainer = Trainer()
    evaluate.exact_evaluation(trainer)
    assert trainer.evaluation_loop([]).metrics == {}
    left = weakref.ref(trainer)
    del trainer
    assert left() is None

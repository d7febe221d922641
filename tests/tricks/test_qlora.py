"""A model in 4 bits learns by its adapters, through Trainer, a loop and SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from datasets import Dataset
from doors import DOORS, load, train
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

import hf_efficient as hf
from hf_efficient.plan import Plan

VARIANTS = ["qlora(compute_dtype='float16')", "qlora(compute_dtype='float32')"]


@pytest.fixture(scope="module")
def task() -> list[dict[str, Any]]:
    """Rows that count round eight tokens by threes from unequal starts: each token follows from the one before."""
    counted = [(torch.arange(16) * 3 + start) % 8 + 3 for start in range(32)]
    return [{"input_ids": row, "labels": row.clone()} for row in counted]


def loss(model: Any, rows: list[dict[str, Any]]) -> float:
    """Return the model's loss on the rows, in nats per token, without dropout."""
    tokens = torch.stack([row["input_ids"] for row in rows])
    with torch.no_grad():
        return float(model.eval()(input_ids=tokens, labels=tokens).loss)


@pytest.mark.launch
@DOORS
def test_it_learns(door: str, tiny: Path, task: list[Any]) -> None:
    """In twenty updates the loss on a fixed task falls from that of guessing by more than half a nat."""
    plan = hf.make_plan("qlora(16)", "bf16", "batch_size(8)", "gradient_clipping")
    model = load(tiny, plan)
    before = loss(model, task)
    set_seed(0)  # the adapters start at random
    run = train(door, plan, model, task * 5, updates=20, rate=2e-2)
    assert before > 4.7
    after = loss(run.model, task)
    print(f"{door}: {before:.3f} -> {after:.3f}")
    assert after < before - 0.5


@DOORS
def test_weights_lie_in_four_bits(door: str, tiny: Path, task: list[Any]) -> None:
    """Linear layers but the head hold NF4 with double quantisation, stay as they are, and compute in bfloat16."""
    plan = hf.make_plan("qlora(4)", "bf16")
    model = load(tiny, plan)
    layers = [module for module in model.modules() if isinstance(module, bnb.nn.Linear4bit)]
    stored = [layer.weight.clone() for layer in layers]
    train(door, plan, model, task)
    assert len(layers) == 14
    for layer, before in zip(layers, stored, strict=True):
        state = layer.weight.quant_state
        assert (state.quant_type, state.nested, layer.compute_dtype) == ("nf4", True, torch.bfloat16)
        assert layer.weight.numel() * 2 == layer.in_features * layer.out_features
        assert torch.equal(layer.weight, before)
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    frozen = {weight.dtype for weight in model.parameters() if not weight.requires_grad}
    assert (trained, frozen) == ({torch.float32}, {torch.uint8, torch.bfloat16})


@pytest.mark.launch
@pytest.mark.parametrize("by_name", [True, False])
def test_sft_trainer_learns_with_float32_adapters(by_name: bool, tiny: Path, task: list[Any], tmp_path: Path) -> None:
    """SFTTrainer loads a named model in 4 bits, and after `add_adapter` its adapters are in float32 and learn."""
    plan = hf.make_plan("qlora(4)", "bf16", "batch_size(8)")
    yours: dict[str, Any] = {"max_steps": 2, "learning_rate": 1e-2, "save_strategy": "no", "disable_tqdm": True}
    args = hf.training_arguments(plan, SFTConfig, output_dir=tmp_path, max_length=16, **yours)
    trainer = SFTTrainer(
        str(tiny) if by_name else load(tiny, plan),
        args,
        train_dataset=Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in task]),
        processing_class=AutoTokenizer.from_pretrained(tiny),
        peft_config=hf.peft_config(plan),
    )
    assert trainer.model.is_loaded_in_4bit
    assert hf.add_adapter(plan, trainer.model) is trainer.model
    before = loss(trainer.model, task)
    trainer.train()
    assert {weight.dtype for weight in trainer.model.parameters() if weight.requires_grad} == {torch.float32}
    assert loss(trainer.model, task) < before - 0.01


@pytest.mark.parametrize("add", [hf.add_adapter, hf.prepare_model])
def test_a_model_that_is_not_in_four_bits_is_refused(add: Any, tiny: Path) -> None:
    """A model loaded without the plan's keywords is named as what it is, and not trained as if it were in 4 bits."""
    with pytest.raises(ValueError, match="not: load it with from_pretrained"):
        add(hf.make_plan("qlora"), load(tiny))


def test_old_cards_compute_in_float16() -> None:
    """A T4 is told that it has no bfloat16, and has what compute_dtype='float16' needs."""
    old = hf.Machine.named("T4")
    assert any("bf16" in sentence for sentence in hf.make_plan("qlora").unmet(old))
    plan = hf.make_plan("qlora(compute_dtype='float16')", "fp16")
    assert plan.unmet(old) == []
    assert hf.model_keywords(plan)["quantization_config"].bnb_4bit_compute_dtype == torch.float16
    assert Plan()["model"] == {}


def test_evaluating_leaves_the_gradients_right(tmp_path: Path) -> None:
    """An evaluation before the first update, on a CPU that repacks 4-bit weights for it, changes no gradient."""
    set_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.2, **sizes)).save_pretrained(tmp_path)
    plan, tokens = hf.make_plan("qlora"), torch.arange(3, 67).view(2, 32)

    def gradient(*, evaluated: bool) -> torch.Tensor:
        set_seed(0)
        model = LlamaForCausalLM.from_pretrained(tmp_path, **hf.model_keywords(plan))
        model = hf.add_adapter(plan, model)
        if evaluated:
            loss(model, [{"input_ids": row} for row in tokens])
        model.train()(input_ids=tokens, labels=tokens).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.requires_grad])

    assert torch.equal(gradient(evaluated=True), gradient(evaluated=False))

"""Adapters alone are trained, in float32 on frozen weights of the checkpoint's dtype, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, load, train
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification
from trl import SFTConfig

from hf_efficient import Machine, add_adapter, make_plan, model_keywords, peft_config, prepare_model, training_arguments
from hf_efficient.plan import Conflict

VARIANTS = ["lora(4, alpha=8, target_modules=['q_proj'])"]
LAYERS = 7 * 2  # q, k, v, o, gate, up, down in each of two layers


@pytest.fixture
def stored_in_bf16(tiny: Path, tmp_path: Path) -> Path:
    """A folder with the tiny model in bfloat16, as most checkpoints are."""
    load(tiny).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


@DOORS
def test_adapters_alone_learn(door: str, tiny: Path, rows: list[Any]) -> None:
    """Every linear layer but the head gets two matrices of rank 4, which change, while all other weights stay."""
    model = load(tiny)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    run = train(door, make_plan("lora(4)"), model, rows)
    after = {name.replace(".base_layer", ""): weight for name, weight in model.named_parameters()}
    added = {name: weight for name, weight in after.items() if name not in before}
    assert len(added) == 2 * LAYERS
    assert all(min(weight.shape) == 4 for weight in added.values())
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert all(weight.any() for name, weight in added.items() if "lora_B" in name), "they start at zero"
    sizes = [state.numel() for slot in run.optimizer.state.values() for state in slot.values() if state.numel() > 1]
    assert sum(sizes) == 2 * sum(weight.numel() for weight in added.values())


@pytest.mark.parametrize("add", [add_adapter, prepare_model])
@pytest.mark.parametrize("names", [("lora",), ("bf16", "lora"), ("lora", "bf16")])
def test_frozen_weights_keep_their_dtype(add: Any, names: tuple[str, ...], stored_in_bf16: Path) -> None:
    """Beside bf16, which asks for float32 weights, the frozen ones stay in the checkpoint's bfloat16."""
    plan = make_plan(*names)
    model = add(plan, AutoModelForCausalLM.from_pretrained(stored_in_bf16, **model_keywords(plan)))
    dtypes = {(weight.requires_grad, weight.dtype) for weight in model.parameters()}
    assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
    assert ("lora decides dtype: 'auto', not the 'float32' of bf16." in plan.notes) == ("bf16" in names)


def test_whole_modules_are_trained_in_float32_too(stored_in_bf16: Path) -> None:
    """A module that is trained as a whole beside the adapters is in float32, unlike its frozen original."""
    model = add_adapter(make_plan("lora"), load(stored_in_bf16), modules_to_save=["lm_head"])
    head = model.get_output_embeddings()
    assert head.modules_to_save["default"].weight.dtype == torch.float32
    assert head.original_module.weight.dtype == torch.bfloat16


def test_a_new_head_is_trained_whole() -> None:
    """A classification head, which no checkpoint has, is trained as a whole and not by an adapter."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_labels=3
    )
    plan = make_plan("lora")
    model = add_adapter(plan, LlamaForSequenceClassification(config))
    assert str(peft_config(plan, model).task_type) == "SEQ_CLS"
    heads = [name for name, weight in model.named_parameters() if weight.requires_grad and "score" in name]
    assert heads == ["base_model.model.score.modules_to_save.default.weight"]


def test_the_plan_is_the_configuration(tiny: Path) -> None:
    """Rank, scale and layers arrive in PEFT's object, and fields of yours win."""
    plan = make_plan("lora(4, alpha=8, target_modules=['q_proj'])")
    config = peft_config(plan, load(tiny), lora_dropout=0.5)
    assert (config.r, config.lora_alpha, config.target_modules, config.lora_dropout) == (4, 8, {"q_proj"}, 0.5)
    assert peft_config(make_plan("bf16")) is None
    assert add_adapter(make_plan("bf16"), plan) is plan  # type: ignore[type-var]


def test_an_adapter_is_not_added_twice(tiny: Path) -> None:
    """A model that has its adapter keeps it, back in float32 where somebody cast it."""
    plan = make_plan("lora")
    model = add_adapter(plan, load(tiny))
    assert isinstance(model, PeftModel)
    assert add_adapter(plan, model.to(torch.bfloat16)) is model
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}


def test_sft_loads_a_named_model_alike(tmp_path: Path) -> None:
    """SFTConfig carries the keywords of from_pretrained for a model that SFTTrainer is given by name."""
    args = training_arguments(make_plan("lora"), SFTConfig, output_dir=tmp_path)
    assert args.model_init_kwargs == {"dtype": "auto"}
    assert (
        training_arguments(make_plan("lora"), SFTConfig, output_dir=tmp_path, model_init_kwargs=None).model_init_kwargs
        is None
    )


def test_missing_peft_and_two_adapters_are_named() -> None:
    """A machine without PEFT is told how to install it, and lora beside qlora is a conflict."""
    [sentence] = make_plan("lora").unmet(replace(Machine.named("A10"), packages={}))
    assert "pip install 'hf-efficient[peft]'" in sentence
    with pytest.raises(Conflict, match="both of the family adapter"):
        make_plan("lora", "qlora")

"""Adapters alone are trained, in float32 on frozen weights of the checkpoint's dtype, through both doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, load, train
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForQuestionAnswering,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)
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
    model = add_adapter(make_plan("lora", "bf16"), load(stored_in_bf16), modules_to_save=["lm_head"])
    head = model.get_output_embeddings()
    assert head.modules_to_save["default"].weight.dtype == torch.float32
    assert head.original_module.weight.dtype == torch.bfloat16


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
HEADS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "score": (LlamaForSequenceClassification, LlamaConfig, {"labels": [1], "pad_token_id": 0}),
    "classifier": (BertForTokenClassification, BertConfig, {"labels": [[1, 0, 1]]}),
    "qa_outputs": (BertForQuestionAnswering, BertConfig, {"start_positions": [0], "end_positions": [2]}),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_new_head_is_trained_whole(head: str) -> None:
    """The head that no checkpoint has is trained as a whole and not by an adapter, and gradients reach both."""
    kind, config, labels = HEADS[head]
    padding = {"pad_token_id": labels.pop("pad_token_id")} if "pad_token_id" in labels else {}
    model = add_adapter(make_plan("lora"), kind(config(**SMALL, **padding)))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" not in name}
    assert trained
    assert all(name.startswith(f"base_model.model.{head}.modules_to_save.default.") for name in trained)
    model(
        input_ids=torch.tensor([[3, 4, 5]]), **{key: torch.tensor(value) for key, value in labels.items()}
    ).loss.backward()
    gradients = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert {name for name in trained if name.endswith("weight")} <= gradients  # two softmaxes do not see a bias
    assert any("lora_B" in name for name in gradients)


def test_a_speech_model_is_no_reader_of_tokens() -> None:
    """Whisper, whose class is named as a translator's, gets an adapter for its own inputs and trains."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=32,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = add_adapter(make_plan("lora"), WhisperForConditionalGeneration(config))
    model(input_features=torch.randn(1, 8, 20), labels=torch.tensor([[3, 4]])).loss.backward()
    assert any(weight.grad is not None for weight in model.parameters())


def test_float32_layers_beside_16_bits_want_autocast(stored_in_bf16: Path) -> None:
    """Layers trained as a whole in float32 on frozen bf16 ones are refused without bf16, and train with it."""
    with pytest.raises(ValueError, match="add bf16 or fp16 to the plan"):
        add_adapter(make_plan("lora"), load(stored_in_bf16), modules_to_save=["lm_head"])


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


def test_another_adapter_is_refused(tiny: Path) -> None:
    """A model whose adapter is not the plan's is not taken for it, and a field that PEFT has not is named."""
    model = add_adapter(make_plan("lora"), load(tiny))
    with pytest.raises(ValueError, match=r"has an adapter with r=16 already, and lora\(4\) wants 4"):
        add_adapter(make_plan("lora(4)"), model)
    with pytest.raises(ValueError, match=r"no field of LoraConfig 'lora_alfa': did you mean lora_alpha\?"):
        add_adapter(make_plan("lora"), load(tiny), lora_alfa=1)


@pytest.mark.parametrize("spelling", ["lora(alpha=0)", "lora(dropout=1.0)", "lora(target_modules=[])", "lora(r=0)"])
def test_adapters_that_train_nothing_are_refused(spelling: str) -> None:
    """A scale of zero, dropping everything and no layers are refused by the name of the argument."""
    with pytest.raises(ValueError, match=spelling.split("(")[1].split("=")[0]):
        make_plan(spelling)


def test_sft_loads_a_named_model_alike(tmp_path: Path) -> None:
    """SFTConfig carries the keywords of from_pretrained for a model that SFTTrainer is given by name."""
    args = training_arguments(make_plan("lora"), SFTConfig, output_dir=tmp_path)
    assert args.model_init_kwargs == {"dtype": "auto"}
    assert (
        training_arguments(make_plan("lora"), SFTConfig, output_dir=tmp_path, model_init_kwargs=None).model_init_kwargs
        is None
    )


def test_your_keywords_for_sft_stand_beside_the_plans(tmp_path: Path) -> None:
    """A keyword of yours for from_pretrained is added, and does not take the quantization away."""
    yours = {"attn_implementation": "eager"}
    args = training_arguments(make_plan("qlora"), SFTConfig, output_dir=tmp_path, model_init_kwargs=yours)
    assert args.model_init_kwargs["quantization_config"]["load_in_4bit"]
    assert args.model_init_kwargs["attn_implementation"] == "eager"
    assert model_keywords(make_plan("bf16"), torch_dtype="bfloat16") == {"dtype": "bfloat16"}


def test_the_plan_says_what_a_script_has_to_do() -> None:
    """The report of a plan with an adapter says that arguments alone do not add it."""
    from hf_efficient.describe import plan_report

    [said] = plan_report(make_plan("lora"), Machine(), 1)["notes"]
    assert "add_adapter(plan, model) before Trainer" in said


def test_missing_peft_and_two_adapters_are_named() -> None:
    """A machine without PEFT is told how to install it, and lora beside qlora is a conflict."""
    [sentence] = make_plan("lora").unmet(replace(Machine.named("A10"), packages={}))
    assert "pip install 'hf-efficient[peft]'" in sentence
    with pytest.raises(Conflict, match="both of the family adapter"):
        make_plan("lora", "qlora")

"""What is read in transformers' sources about a head's loss is what the head does."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import pytest

from hf_efficient.checks import heads
from hf_efficient.checks.rules.accumulation import MOSTLY
from hf_efficient.promises.heads import HEADS

SIZES = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "d_model": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "dim": 16,
    "hidden_dim": 16, "n_layers": 1, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "embedding_size": 16,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
    "max_position_embeddings": 64, "pad_token_id": 0, "num_labels": 3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NAMES = (
    "BertForSequenceClassification", "LlamaForSequenceClassification", "LlamaForTokenClassification", "BertForMaskedLM",
    "EuroBertForMaskedLM", "BartForConditionalGeneration", "BartForCausalLM", "RobertaForCausalLM", "OPTForCausalLM",
    "BloomForCausalLM", "XLNetLMHeadModel", "MBartForConditionalGeneration", "ElectraForTokenClassification",
    "GPT2ForSequenceClassification", "ModernBertForSequenceClassification", "MistralForCausalLM",
)  # fmt: skip


def _loss(model: Any, name: str, **more: Any) -> float:
    import torch

    ids = torch.arange(3, 19).reshape(2, 8)
    labels = ids
    if "Sequence" in name or "Token" in name:
        labels = torch.tensor([1, 2]) if "Sequence" in name else ids % 3
    return float(model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, **more).loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_head_does_with_num_items_what_its_source_says(name: str) -> None:
    """A loss that changes with num_items_in_batch uses it; one that does not, drops it."""
    import torch
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class()
    for key, value in SIZES.items():
        if hasattr(config, key):
            with suppress(NotImplementedError):  # XLNet has no longest sequence, and says so
                setattr(config, key, value)
    model = kind(config).eval()
    assert any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values())
    same = abs(_loss(model, name) - _loss(model, name, num_items_in_batch=torch.tensor(1000))) < 1e-5
    assert heads.verdict(name) == (heads.DROPS if same else heads.USES)


MEASURED = {
    "gpt2": "uses", "llama": "uses", "qwen3": "uses", "gemma3": "uses", "mixtral": "uses",
    "qwen3-moe-balanced": "uses", "bert": "drops", "roberta": "drops", "modernbert": "drops",
    "distilbert": "drops", "t5": "drops", "whisper": "drops", "vit": "uses", "smolvlm": "uses",
}  # fmt: skip
"""What docs/measured/promises.json tells of each head under gradient_accumulation."""


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_the_measured_heads_are_read_rightly(head: str) -> None:
    """The heads of docs/promises.md do what their sources say."""
    name = HEADS[head]().architectures[0]
    assert heads.verdict(name) == MEASURED[head]


@pytest.mark.slow
@pytest.mark.parametrize("auto", MOSTLY)
def test_most_heads_of_an_auto_class_drop_the_number(auto: str) -> None:
    """The counts that a warning gives are those of the installed release."""
    names = list(heads.mapping(auto).values())
    dropped = sum(heads.verdict(name) == heads.DROPS for name in names)
    assert f"{dropped} of {len(names)}" == MOSTLY[auto]


def test_an_auto_class_is_read_as_what_it_builds() -> None:
    """The mapping of an Auto class is read without importing transformers."""
    assert heads.auto_class("AutoModelForSeq2SeqLM", "t5") == "T5ForConditionalGeneration"
    assert heads.verdict("T5ForConditionalGeneration") == heads.DROPS
    assert heads.verdict("NoSuchForCausalLM") == ""
    assert heads.verdict("Qwen3VLForConditionalGeneration") == heads.DIVIDED

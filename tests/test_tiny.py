"""Tiny models of any configuration, and the rows made for their heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.promises.batches import collate
from hf_efficient.promises.heads import HEADS, configuration
from hf_efficient.promises.rows import made_rows
from hf_efficient.promises.shrink import tiny_config
from hf_efficient.promises.subject import silence
from hf_efficient.promises.tiny import head_class, load, load_config, tiny_folder, tiny_model
from hf_efficient.promises.words import word_tokenizer

pytestmark = pytest.mark.launch  # a minute together


def _of(name: str, head: str, **fields: Any) -> Callable[[], Any]:
    return partial(configuration, name, head, **fields)


SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
QWEN_VL = {"text_config": {"rope_parameters": SECTIONS, "vocab_size": 152064, "bos_token_id": 151643}}
PIXTRAL = {"vision_config": {"model_type": "pixtral"}, "text_config": {"model_type": "mistral"}}
UNLISTED = {
    "opt": _of("OPTConfig", "OPTForCausalLM"),
    "phi": _of("PhiConfig", "PhiForCausalLM"),
    "phi3-longrope": _of(
        "Phi3Config",
        "Phi3ForCausalLM",
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [4.0] * 48,
            "factor": 32.0, "original_max_position_embeddings": 4096,
        },
    ),
    "falcon": _of("FalconConfig", "FalconForCausalLM", multi_query=True),
    "bloom": _of("BloomConfig", "BloomForCausalLM"),
    "gpt-neo": _of("GPTNeoConfig", "GPTNeoForCausalLM"),
    "gemma2": _of("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma4": _of("Gemma4TextConfig", "Gemma4ForCausalLM"),
    "gpt-oss": _of("GptOssConfig", "GptOssForCausalLM"),
    "deepseek-v3": _of("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "qwen3-next": _of("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "mamba": _of("MambaConfig", "MambaForCausalLM"),
    "jamba": _of("JambaConfig", "JambaForCausalLM", use_mamba_kernels=False),
    "llama-classifies": _of("LlamaConfig", "LlamaForSequenceClassification"),
    "bart": _of("BartConfig", "BartForConditionalGeneration"),
    "marian": _of("MarianConfig", "MarianMTModel"),
    "mt5": _of("MT5Config", "MT5ForConditionalGeneration", decoder_start_token_id=0),
    "bert-pretrains": _of("BertConfig", "BertForPreTraining"),
    "bert-answers": _of("BertConfig", "BertForQuestionAnswering"),
    "bert-chooses": _of("BertConfig", "BertForMultipleChoice"),
    "bert-regression": _of("BertConfig", "BertForSequenceClassification", num_labels=1),
    "bert-multi-label": _of(
        "BertConfig", "BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification"
    ),
    "electra": _of("ElectraConfig", "ElectraForPreTraining"),
    "deberta": _of("DebertaV2Config", "DebertaV2ForTokenClassification", num_labels=5),
    "albert": _of("AlbertConfig", "AlbertForMaskedLM"),
    "wav2vec2": _of("Wav2Vec2Config", "Wav2Vec2ForCTC"),
    "swin": _of("SwinConfig", "SwinForImageClassification"),
    "convnext": _of("ConvNextConfig", "ConvNextForImageClassification"),
    "resnet": _of("ResNetConfig", "ResNetForImageClassification"),
    "qwen2-vl": _of("Qwen2VLConfig", "Qwen2VLForConditionalGeneration", **QWEN_VL),
    "qwen2.5-vl": _of("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration", **QWEN_VL),
    "llava": _of("LlavaConfig", "LlavaForConditionalGeneration"),
    "llava-next": _of("LlavaNextConfig", "LlavaNextForConditionalGeneration"),
    "gemma3-images": _of("Gemma3Config", "Gemma3ForConditionalGeneration", vision_config={"vision_use_head": False}),
    "mistral3": _of("Mistral3Config", "Mistral3ForConditionalGeneration", **PIXTRAL),
    "idefics3": _of("Idefics3Config", "Idefics3ForConditionalGeneration"),
    "paligemma": _of("PaliGemmaConfig", "PaliGemmaForConditionalGeneration"),
}  # fmt: skip
ALL = HEADS | UNLISTED
# What a head leaves untrained by itself: LLaVA reads its last but one vision layer, which leaves the last one out.
UNTRAINED = {"llava": 0.4, "llava-next": 0.4, "paligemma": 0.4}


def _batch(model: Any, number: int = 8) -> dict[str, Any]:
    return collate(model, word_tokenizer(model.config))(made_rows(model, number))


@pytest.mark.parametrize("name", ALL)
def test_a_tiny_model_trains_on_made_rows(name: str) -> None:
    """A model of fewer than 500,000 parameters has a finite loss, and a gradient for (nearly) every parameter."""
    model = tiny_model(ALL[name]())
    silence(model)  # a whole layer may be dropped, and has no gradient then
    assert type(model).__name__ == (model.config.architectures or [""])[0]
    assert model.num_parameters() < 500_000
    assert model.training
    loss = model(**_batch(model)).loss
    loss.backward()
    assert loss.isfinite()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    without = [weight for weight in trained if weight.grad is None or not weight.grad.any()]
    assert len(without) <= UNTRAINED.get(name, 0.1) * len(trained)
    if name in HEADS:
        import torch

        assert torch.stack([weight.grad.norm() for weight in trained if weight.grad is not None]).norm() > 1


@pytest.mark.parametrize("name", ALL)
def test_made_rows_differ_in_length_and_repeat(name: str) -> None:
    """Rows of texts are unequal in tokens and, where labels can be left out, in labels; a seed repeats them."""
    import torch

    model = tiny_model(ALL[name]())
    state = torch.get_rng_state()
    rows, again, others = made_rows(model, 8), made_rows(model, 8), made_rows(model, 8, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert str(rows) == str(again) != str(others)
    texts = [_flat(row.get("input_ids", row.get("labels"))) for row in rows]
    if "pixel_values" not in rows[0] or "input_ids" in rows[0]:
        assert len(texts[0]) != len(texts[-1])
        assert all(0 <= token < 256 for text in texts for token in text)
    if isinstance(rows[0].get("labels"), list) and model.config.problem_type is None:
        assert len({sum(label != -100 for label in row["labels"]) for row in rows}) > 1


def _flat(tokens: Any) -> list[int]:
    """Return the tokens of a row, those of several texts one after the other."""
    if not isinstance(tokens, list):
        return [tokens]
    return [token for text in tokens for token in _flat(text)]


@pytest.mark.parametrize("name", ALL)
def test_a_seed_repeats_the_weights(name: str, tmp_path: Path) -> None:
    """Built twice, or saved and loaded, the weights are equal bit by bit; another seed gives others."""
    import torch

    config = ALL[name]()
    state = torch.get_rng_state()
    first, other = tiny_model(config), tiny_model(config, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    loaded = load(tiny_folder(config, tmp_path))
    weights, found = first.state_dict(), loaded.state_dict()
    assert weights.keys() == found.keys()
    assert all(torch.equal(weights[key], found[key]) for key in weights)
    assert any(not torch.equal(weights[key], value) for key, value in other.state_dict().items())
    assert config.to_dict() == ALL[name]().to_dict()


def test_kinds_of_layers_and_ratios_of_heads_stay() -> None:
    """Gemma 3 keeps a sliding and a full layer, Llama its 4 heads for a key, Qwen2-VL sections that fill a head."""
    gemma, llama, qwen = (tiny_config(ALL[name]()) for name in ("gemma3", "llama", "qwen2-vl"))
    assert gemma.layer_types == ["sliding_attention", "full_attention"]
    assert gemma.sliding_window == 8
    assert (llama.num_attention_heads, llama.num_key_value_heads, llama.head_dim) == (4, 1, 16)
    assert len({llama.bos_token_id, *llama.eos_token_id}) == 4
    assert max(llama.bos_token_id, *llama.eos_token_id) < llama.vocab_size == 256
    assert sum(qwen.text_config.rope_parameters["mrope_section"]) == 8


def test_the_configuration_alone_is_enough(tmp_path: Path) -> None:
    """A folder with only the config.json of a 7B Llama gives a tiny Llama."""
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=4096, num_hidden_layers=32, quantization_config={"quant_method": "gptq"})
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}))
    model = tiny_model(load_config(str(tmp_path)))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model(**_batch(model)).loss.isfinite()


def test_keywords_of_from_pretrained_count() -> None:
    """A tiny model is loaded with a plan's dtype, attention kernel and quantization."""
    import torch

    from hf_efficient import make_plan
    from hf_efficient.emit.model import model_keywords

    pytest.importorskip("bitsandbytes")
    model = tiny_model(HEADS["llama"](), dtype="bfloat16", attn_implementation="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    plan = make_plan("qlora")
    assert tiny_model(HEADS["llama"](), **model_keywords(plan)).is_loaded_in_4bit


@pytest.mark.parametrize("name", ["whisper", "vit", "smolvlm"])
def test_images_and_sounds_have_the_dtype_of_the_weights(name: str) -> None:
    """A model loaded in bf16 takes the batches that are made for it."""
    model = tiny_model(HEADS[name](), dtype="bfloat16")
    assert model(**_batch(model)).loss.isfinite()


def test_the_head_is_the_configurations_else_one_that_fits() -> None:
    """`architectures` decides; a body alone or nothing falls back on an auto class that knows the configuration."""
    from transformers import BertConfig, LlamaConfig, T5Config, WhisperConfig

    assert head_class(BertConfig(architectures=["BertForMaskedLM"])).__name__ == "BertForMaskedLM"
    assert head_class(LlamaConfig(architectures=["LlamaModel"])).__name__ == "LlamaForCausalLM"
    assert head_class(T5Config()).__name__ == "T5ForConditionalGeneration"
    assert head_class(BertConfig()).__name__ == "BertForMaskedLM"
    assert head_class(WhisperConfig()).__name__ == "WhisperForConditionalGeneration"
    named = head_class(BertConfig(), "AutoModelForSequenceClassification").__name__
    assert named == "BertForSequenceClassification"


def test_what_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    """No folder, no known class, no small model and no rows for a head are ValueErrors that say what to do."""
    from transformers import BertConfig, PerceiverConfig, PreTrainedConfig, ViTConfig

    with pytest.raises(ValueError, match="There is no folder"):
        load_config(str(tmp_path / "nothing"))
    code = {"model_type": "theirs", "auto_map": {"AutoConfig": "code.TheirConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(code))
    with pytest.raises(ValueError, match=r"Cannot read the configuration of .* code of its own"):
        load_config(str(tmp_path))
    with pytest.raises(ValueError, match="pass --data"):
        head_class(PreTrainedConfig(architectures=["TheirForCausalLM"]))
    broken = BertConfig(architectures=["BertForMaskedLM"], hidden_act="none such")
    with pytest.raises(ValueError, match=r"cannot be built .* pass --data"):
        tiny_model(broken)
    large = PerceiverConfig(architectures=["PerceiverForMaskedLM"])
    with pytest.raises(ValueError, match=r"it would have .* parameters; pass --data"):
        tiny_model(large)
    unknown = tiny_model(ViTConfig(architectures=["ViTForMaskedImageModeling"]))
    with pytest.raises(ValueError, match=r"no made rows for a ViTForMaskedImageModeling.*--data"):
        made_rows(unknown, 2)

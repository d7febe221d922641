"""The heads that every trick is checked on: configurations with the structure and sizes of released models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def configuration(name: str, head: str, **fields: Any) -> PreTrainedConfig:
    """Return the configuration of class `name` with these fields, for the model class `head`."""
    import transformers

    config: PreTrainedConfig = getattr(transformers, name)(**fields)
    config.architectures = [head]
    return config


def gpt2() -> PreTrainedConfig:
    """Return GPT-2 small."""
    return configuration("GPT2Config", "GPT2LMHeadModel")


def llama() -> PreTrainedConfig:
    """Return Llama 3.1 8B."""
    return configuration(
        "LlamaConfig", "LlamaForCausalLM", vocab_size=128256, hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
        bos_token_id=128000, eos_token_id=[128001, 128008, 128009], tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    )  # fmt: skip


def qwen3() -> PreTrainedConfig:
    """Return Qwen3 4B."""
    return configuration(
        "Qwen3Config", "Qwen3ForCausalLM", vocab_size=151936, hidden_size=2560, intermediate_size=9728,
        num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=40960, bos_token_id=151643, eos_token_id=151645, tie_word_embeddings=True,
    )  # fmt: skip


def gemma3() -> PreTrainedConfig:
    """Return Gemma 3 1B, which has text alone."""
    return configuration(
        "Gemma3TextConfig", "Gemma3ForCausalLM", vocab_size=262144, hidden_size=1152, intermediate_size=6912,
        num_hidden_layers=26, num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512,
        max_position_embeddings=32768,
    )  # fmt: skip


def mixtral() -> PreTrainedConfig:
    """Return Mixtral 8x7B as it is trained by default, without the loss that balances its experts."""
    return configuration("MixtralConfig", "MixtralForCausalLM", output_router_logits=False)


def qwen3_moe_balanced() -> PreTrainedConfig:
    """Return Qwen3 30B-A3B with the loss that balances its experts."""
    return configuration(
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM", vocab_size=151936, hidden_size=2048, intermediate_size=6144,
        moe_intermediate_size=768, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, output_router_logits=True,
        bos_token_id=151643, eos_token_id=151645,
    )  # fmt: skip


def bert() -> PreTrainedConfig:
    """Return BERT base, which predicts masked tokens."""
    return configuration("BertConfig", "BertForMaskedLM")


def roberta() -> PreTrainedConfig:
    """Return RoBERTa base that sorts texts into three classes."""
    return configuration(
        "RobertaConfig", "RobertaForSequenceClassification", vocab_size=50265, max_position_embeddings=514,
        type_vocab_size=1, num_labels=3,
    )  # fmt: skip


def modernbert() -> PreTrainedConfig:
    """Return ModernBERT base that sorts texts into two classes."""
    return configuration("ModernBertConfig", "ModernBertForSequenceClassification", num_labels=2)


def distilbert() -> PreTrainedConfig:
    """Return DistilBERT base that labels each token with one of five classes."""
    return configuration("DistilBertConfig", "DistilBertForTokenClassification", num_labels=5)


def t5() -> PreTrainedConfig:
    """Return T5 small."""
    return configuration("T5Config", "T5ForConditionalGeneration", decoder_start_token_id=0)


def whisper() -> PreTrainedConfig:
    """Return Whisper tiny."""
    return configuration("WhisperConfig", "WhisperForConditionalGeneration")


def vit() -> PreTrainedConfig:
    """Return ViT base that sorts images into ten classes."""
    return configuration("ViTConfig", "ViTForImageClassification", num_labels=10)


def smolvlm() -> PreTrainedConfig:
    """Return SmolVLM 256M, which reads images and text."""
    text = {
        "model_type": "llama", "vocab_size": 49280, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 49279, "pad_token_id": 2,
    }  # fmt: skip
    vision = {
        "model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
    }  # fmt: skip
    return configuration(
        "SmolVLMConfig", "SmolVLMForConditionalGeneration", text_config=text, vision_config=vision, scale_factor=4,
        image_token_id=49190, pad_token_id=2,
    )  # fmt: skip


HEADS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": gpt2,
    "llama": llama,
    "qwen3": qwen3,
    "gemma3": gemma3,
    "mixtral": mixtral,
    "qwen3-moe-balanced": qwen3_moe_balanced,
    "bert": bert,
    "roberta": roberta,
    "modernbert": modernbert,
    "distilbert": distilbert,
    "t5": t5,
    "whisper": whisper,
    "vit": vit,
    "smolvlm": smolvlm,
}
"""Name of a column of the table -> its configuration."""

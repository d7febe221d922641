"""What each size of a configuration becomes in a tiny model, by the names that transformers' configurations use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN, HEADS, HEAD, ROTATED, WIDE, EXPERT, VOCABULARY, POSITIONS, WINDOW = 64, 4, 16, 8, 128, 64, 256, 512, 8
PATCH, IMAGE = 8, 32
FRAMES = 32
"""Positions of an audio encoder; Whisper's takes twice as many frames."""

LAYERS = re.compile(
    r"^((text_|encoder_|decoder_|num_|n_)*(hidden_|encoder_|decoder_|transformer_)?layers?"
    r"|depth|[lxr]_layers|num_perceiver_blocks|resampler_depth)$"
)
"""Names of the number of layers."""
KEY_VALUE_HEADS = re.compile(r"(key_value_heads|kv_heads|kv_n_heads|num_attention_groups|query_groups|num_key_heads)$")


def _to(value: int) -> Callable[[Any], int]:
    return lambda _: value


def _most(value: int) -> Callable[[Any], Any]:
    return lambda old: min(old, value)


RULES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    (r"(^|_)vocab_size(_|$)|^n_words$|^unpadded_vocab|^audio_vocab|codebook_size$", _most(VOCABULARY)),
    (r"query_pre_attn_scalar", _to(HEAD)),
    (r"hidden_size_per_layer_input", _to(HEAD)),
    (r"^(q_lora_rank|kv_lora_rank|o_lora_rank|.*_lora_rank|.*lora_dim)$", _most(32)),
    (r"qk_rope_head_dim|^rotary_dim|^rotary_emb_dim", _most(ROTATED)),
    (r"d_kv$|head_dim$|^d_head$|mamba_d_head|head_size$|kv_channels|attention_head_dim", _to(HEAD)),
    (r"^mamba_(n|num)_heads$", _to(2 * HIDDEN // HEAD)),
    (r"(state_size|d_state|ssm_state_size)$", _most(HEAD)),
    (r"(time_step_rank|dt_rank)$", _most(4)),
    (r"chunk_size$", lambda old: min(old, WINDOW)),
    (r"(index|indexer)_topk", _most(WINDOW)),
    (r"expert.*(per_tok|_used)|top_k_experts|moe_top_?k|num_selected_experts|router_top_k|moe_k$", _most(2)),
    (r"topk_group$", _most(1)),
    (r"^n_group$|num_expert_group", _most(2)),
    (r"shared_experts$", _most(1)),
    (r"((num|n)_.*experts|moe_num_experts)$", _most(HEADS)),
    (r"first_k_dense|num_dense_layers|dense_layers$|moe_layer_start_index|num_dense", _most(1)),
    (r"num_kv_shared_layers", _to(0)),
    (r"hidden_groups|inner_group_num", _most(2)),
    (r"sliding_window(_size)?$|local_attention$|attention_window$|local_radius|attention_chunk", _most(8)),
    (r"swa_window|(left|right)_context|local_window", _most(WINDOW)),
    (r"(moe|expert).*(intermediate|ffn|hidden|dim)", _to(EXPERT)),
    (
        r"intermediate_(size|dim)|feed_?forward_dim|dim_feedforward|dim_ff|ffn_(dim|hidden|embed)|(^|_)d_ff$|n_inner$|^dff$|mlp_dim$|mlp_hidden|inner_dim$|ffn_size",
        _to(WIDE),
    ),
    (r"^(.*_)?((num|n)_(.*_)?heads?|attention_heads|heads)$", _most(HEADS)),
    (r"max_source_positions|max_audio_positions", _most(POSITIONS)),
    (r"position_embeddings$|positions$|^n_ctx$|max_seq|seq_length$|max_length_pos|max_context", _most(POSITIONS)),
    (r"num_position_embeddings", _most(HEAD)),
    (r"num_mel_bins|^n_mels$|feature_size$|input_feat_per_channel", _most(16)),
    (r"image_seq_length|mm_tokens_per_image|num_image_tokens|image_token_num|num_query_tokens", _most(4)),
    (r"^(.*_)?image_size$|^img_size$", _most(IMAGE)),
    (r"patch_size$", _most(PATCH)),
    (r"conv_pos_embeddings$", _most(HEAD)),
    (r"every_n_layers$|(layer|attention)_(period|interval|freq|frequency)$|sparse_step$", _most(2)),
    (r"(attn|expert|attention)_layer_offset$", _most(1)),
    (r"^coordinate_size$", _to(12)),
    (r"^shape_size$", _to(8)),
    (r"conv_channels$|classifier_proj|conformer_conv", _most(HIDDEN)),
    (
        r"(hidden_size|hidden_dim|embed_dim|emb_dim|embedding_size|embedding_dim|proj_dim|projection_dim|n_embd)$",
        _to(64),
    ),
    (
        r"^d_model$|_d_model$|^dim$|^d_embed$|output_dim$|input_dim$|bottleneck_size$|^width$|^projector_dim|^hidden_channels|lru_width",
        _to(HIDDEN),
    ),
    (r"pooler_output_size|attention_hidden|decoder_output_size|d_inner", _to(HIDDEN)),
)
"""Pattern of a name -> its size from the one before; the first that is found counts."""
COMPILED = [(re.compile(pattern), change) for pattern, change in RULES]


def tiny_size(name: str, value: int, around: Mapping[str, Any]) -> int:
    """Return the tiny size of the field `name`, whose value is `value` in a configuration with the fields `around`."""
    if name == "hidden_dim" and "dim" in around:  # DistilBERT's name of its feed-forward size
        return WIDE
    if name == "num_heads" and "expand" in around:  # Mamba 2: heads x head size is the expanded hidden size
        return int(around["expand"]) * HIDDEN // HEAD
    if name in ("qk_nope_head_dim", "qk_head_dim") and around.get("qk_rope_head_dim"):
        return ROTATED * value // int(around["qk_rope_head_dim"])
    if name == "window_size":
        return _window(value, around)
    if KEY_VALUE_HEADS.search(name):
        return _key_value_heads(name, value, around)
    if name == "max_source_positions" and ("num_mel_bins" in around or "n_mels" in around):
        return min(value, FRAMES)
    change = next((change for pattern, change in COMPILED if pattern.search(name)), None)
    return int(change(value)) if change is not None else value


def _window(value: int, around: Mapping[str, Any]) -> int:
    """Return a window in tokens or, in vision models, in patches or pixels."""
    if "spatial_merge_size" in around:  # Qwen2.5-VL counts pixels, and a window holds whole merged patches
        return 2 * PATCH * int(around["spatial_merge_size"])
    return min(value, 2 if "depths" in around else WINDOW)  # Swin's last stage must not be smaller than a window


def _key_value_heads(name: str, value: int, around: Mapping[str, Any]) -> int:
    """Return as many key/value heads as keep their ratio to the heads."""
    names = (name.replace("key_value", "attention"), name.replace("key_heads", "value_heads"))
    known = (around.get(other) for other in (*names, "num_attention_heads", "num_heads", "n_heads", "n_head"))
    heads = next((number for number in known if isinstance(number, int)), 0)
    tiny = min(heads, HEADS)
    return max(1, tiny * value // heads) if heads >= value > 0 else min(value, HEADS)

"""Tiny models of every kind of head, with rows of unequal numbers of items, for the tests of accumulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as tf
from torch import nn

Rows = list[dict[str, Any]]
SMALL = {"vocab_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16,
         "max_position_embeddings": 32, "pad_token_id": 0}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 1, "head_dim": 8}
COUNT, LENGTH = 14, 10


class Head(NamedTuple):
    """How to build a model, which rows it takes, and the factor of the stock Trainer at four accumulation steps."""

    build: Callable[[], nn.Module]
    rows: Callable[[], Rows]
    factor: float


def tokens(vocabulary: int = 48, length: int = LENGTH, key: str = "input_ids") -> Rows:
    """Return rows of random tokens, always the same."""
    drawn = torch.randint(3, vocabulary, (COUNT, length), generator=torch.Generator().manual_seed(0))
    return [{key: row} for row in drawn]


def labelled(rows: Rows, labels: int, *, full: bool = False) -> Rows:
    """Add a label per token, ignored beyond a number of tokens that grows with the row."""
    drawn = torch.randint(0, labels, (COUNT, LENGTH), generator=torch.Generator().manual_seed(1))
    there = [torch.arange(LENGTH) < (LENGTH if full else 2 + number * 8 // COUNT) for number in range(COUNT)]
    return [{**row, "labels": d.where(t, -100)} for row, d, t in zip(rows, drawn, there, strict=True)]


def with_each(rows: Rows, *, key: str, values: torch.Tensor) -> Rows:
    """Add one value per row."""
    return [{**row, key: value} for row, value in zip(rows, values, strict=True)]


def of_classes(rows: Rows, classes: int, *, key: str = "labels") -> Rows:
    """Add one class per row."""
    return with_each(rows, key=key, values=torch.arange(COUNT) * 7 % 5 % classes)


def causal(full: bool = False) -> Rows:
    """Return rows for a causal model."""
    return labelled(tokens(), 48, full=full)


def images() -> Rows:
    """Return rows of images, with a class each."""
    drawn = torch.randn(COUNT, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return of_classes(with_each([{}] * COUNT, key="pixel_values", values=drawn), 3)


def answers() -> Rows:
    """Return rows with a start and an end."""
    return of_classes(of_classes(tokens(), 4, key="start_positions"), 5, key="end_positions")


def choices() -> Rows:
    """Return rows of three texts each, one of which is right."""
    drawn = torch.randint(3, 48, (COUNT, 3, LENGTH), generator=torch.Generator().manual_seed(0))
    return of_classes(with_each([{}] * COUNT, key="input_ids", values=drawn), 3)


def speech() -> Rows:
    """Return rows of a spectrogram and its text."""
    drawn = torch.randn(COUNT, 8, 40, generator=torch.Generator().manual_seed(0))
    return labelled(with_each([{}] * COUNT, key="input_features", values=drawn), 48)


def pictures_with_text() -> Rows:
    """Return rows of one image of four tokens and text after it."""
    rows = [{"input_ids": torch.cat([torch.full((4,), 47), row["input_ids"][4:] % 40])} for row in tokens()]
    drawn = torch.randn(COUNT, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    rows = labelled(with_each(rows, key="pixel_values", values=drawn), 40, full=True)
    return [
        {**row, "labels": row["labels"].where(torch.arange(LENGTH) > 3 + n % 4, -100)} for n, row in enumerate(rows)
    ]


def llava() -> nn.Module:
    """Return a tiny model of images and text."""
    vision = tf.CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                 image_size=16, patch_size=8)  # fmt: skip
    text = tf.LlamaConfig(**GROUPED)
    return tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=47, vision_feature_layer=-1, image_seq_length=4
        )
    )


def whisper() -> nn.Module:
    """Return a tiny model of speech."""
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            vocab_size=48,
            num_mel_bins=8,
            encoder_layers=1,
            encoder_attention_heads=2,
            decoder_layers=1,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            d_model=16,
            max_source_positions=20,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def made(name: str, **keywords: Any) -> Callable[[], nn.Module]:
    """Return what builds the tiny model of a class of transformers."""

    def build() -> nn.Module:
        head = getattr(tf, name)
        return head(head.config_class(**keywords))

    return build


class Plain(nn.Module):
    """A model nobody listed, without **kwargs: each label of a row is a class, and what is ignored does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(LENGTH, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the mean over labels of rows that are not ignored."""
        found = self.drop(self.first(input_ids / 48.0)).log_softmax(-1)
        assert labels is not None
        lost = nn.functional.nll_loss(found.repeat_interleave(LENGTH, 0), labels.flatten() % 4, reduction="none")
        there = labels.flatten() != -100
        return {"loss": (lost * there).sum() / there.sum(), "logits": found}


class Distances(Plain):
    """Another, whose labels have a name of their own: a mean over numbers, with **kwargs that it drops."""

    def forward(self, input_ids: torch.Tensor, targets: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        """Return a mean absolute error."""
        found = self.first(input_ids / 48.0)
        return {"loss": (found - targets).abs().mean(), "logits": found}


def floats(*shape: int) -> torch.Tensor:
    """Return numbers for each row."""
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(2))


def _numbers() -> Rows:
    return with_each(tokens(), key="labels", values=floats())


def _several() -> Rows:
    return with_each(tokens(), key="labels", values=(floats(3) > 0).float())


def tagged() -> Rows:
    """Return rows with one of five tags per token."""
    return labelled(tokens(), 5)


def _classes() -> Rows:
    return of_classes(tokens(), 3)


GPT2 = {"vocab_size": 48, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
DISTIL = {"dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 48, "max_position_embeddings": 32}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 48, "pad_token_id": 0,
      "decoder_start_token_id": 0}  # fmt: skip
VIT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
       "patch_size": 8, "num_labels": 3}  # fmt: skip
MODERN = SMALL | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3}
MOE = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}
SEVERAL = MODERN | {"problem_type": "multi_label_classification"}


def _head(name: str, keywords: dict[str, Any], rows: Callable[[], Rows], factor: float) -> Head:
    return Head(made(name, **keywords), rows, factor)


HEADS = {
    "gpt2": _head("GPT2LMHeadModel", GPT2, lambda: causal(True), 0.9),
    "llama": _head("LlamaForCausalLM", GROUPED, causal, 1),
    "qwen3": _head("Qwen3ForCausalLM", GROUPED, causal, 1),
    "gemma3": _head("Gemma3ForCausalLM", GROUPED, causal, 1),
    "mixtral": _head("MixtralForCausalLM", MOE, causal, 1),
    "bert": _head("BertForMaskedLM", SMALL, causal, 4),
    "roberta": _head("RobertaForSequenceClassification", SMALL | {"num_labels": 3}, _classes, 4),
    "modernbert": _head("ModernBertForSequenceClassification", MODERN, _classes, 4),
    "regression": _head("RobertaForSequenceClassification", SMALL | {"num_labels": 1}, _numbers, 4),
    "multi_label": _head("ModernBertForSequenceClassification", SEVERAL, _several, 4),
    "distilbert": _head("DistilBertForTokenClassification", DISTIL | {"num_labels": 5}, tagged, 4),
    "t5": _head("T5ForConditionalGeneration", T5, causal, 4),
    "whisper": Head(whisper, speech, 4),
    "vit": _head("ViTForImageClassification", VIT, images, 1),
    "llava": Head(llava, pictures_with_text, 1),
    "answers": _head("BertForQuestionAnswering", SMALL, answers, 1),
    "choices": _head("BertForMultipleChoice", SMALL, choices, 4),
    "plain": Head(Plain, causal, 1),
    "distances": Head(Distances, lambda: with_each(tokens(), key="targets", values=floats(4)), 1),
}
"""Every kind of head."""


def without_dropout(model: nn.Module) -> nn.Module:
    """Return the model with every rate of dropout at 0, wherever a class keeps it."""
    for thing in [getattr(model, "config", None), *model.modules()]:
        for name, value in list(vars(thing).items()) if thing is not None else []:
            if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(thing, nn.Dropout))):
                setattr(thing, name, 0.0)
    return model

"""Made rows for the head of a model: short texts, images and sounds of unequal length, with unequal labels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_efficient.promises.pictures import image_tokens, picture, sound, wave
from hf_efficient.promises.words import ordinary_ids, vocabulary
from hf_efficient.train.items import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Row = dict[str, Any]
SHORTEST, LONGEST = 2, 24
CHOICES = 3
MASKED = 0.15


def made_rows(model: PreTrainedModel, number: int, *, seed: int = 0) -> list[Row]:
    """Return `number` rows that the head of `model` can train on, the same for the same seed.

    Texts have 2 to 24 tokens, in no order; where labels can be left out, their number differs from row to row. The
    values are lists of whole numbers, or tensors for images and sounds. `collator` makes batches of them.

    Raises ValueError for a head that they cannot be made for.
    """
    make = MAKERS[row_kind(model)]
    chance = random.Random(seed)
    lengths = _lengths(number, chance)
    return [make(model, length, random.Random(f"{seed} {place}")) for place, length in enumerate(lengths)]


def row_kind(model: PreTrainedModel) -> str:
    """Return what the rows for the head of `model` are: a key of MAKERS.

    Raises ValueError for a head that no rows can be made for.
    """
    name = _class(model)
    if name.endswith("ForCausalLM") and not hasattr(model.config, "vision_config"):
        return "causal"
    kind = next((kind for kind, names in _classes().items() if name in names), None)
    kind = kind or next((kind for end, kind in ENDS.items() if name.endswith(end)), None)
    name = name or type(model).__name__
    if kind is None or (kind in ("target", "speech") and hasattr(model.config, "audio_config")):
        raise ValueError(
            f"There are no made rows for a {name}: pass rows of yours with --data, or --model with a head for "
            "language modeling, classification, question answering, speech or images with text."
        )
    return kind


def _class(model: PreTrainedModel) -> str:
    inner = getattr(model, "get_base_model", lambda: model)()
    return next((kind.__name__ for kind in type(inner).__mro__ if kind.__module__.startswith("transformers.")), "")


def _classes() -> dict[str, set[str]]:
    """Return the names of transformers' model classes by what their rows are."""
    from transformers.models.auto import modeling_auto as auto

    def names(*tasks: str) -> set[str]:
        mappings = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks]
        values = [value for mapping in mappings for value in mapping.values()]
        return {name for value in values for name in ((value,) if isinstance(value, str) else value)}

    return {
        "speech": names("SPEECH_SEQ_2_SEQ"),
        "target": names("SEQ_TO_SEQ_CAUSAL_LM"),
        "causal": names("CAUSAL_LM") - names("MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"),
        "masked": names("MASKED_LM"),
        "picture_text": names("IMAGE_TEXT_TO_TEXT"),
        "sequence": names("SEQUENCE_CLASSIFICATION"),
        "tokens": names("TOKEN_CLASSIFICATION"),
        "image": names("IMAGE_CLASSIFICATION"),
        "letters": names("CTC"),
        "sound": names("AUDIO_CLASSIFICATION"),
        "answer": names("QUESTION_ANSWERING"),
        "choice": names("MULTIPLE_CHOICE"),
    }


ENDS = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForImageClassification": "image",
    "ForQuestionAnswering": "answer",
    "ForMultipleChoice": "choice",
    "BertForPreTraining": "pretraining",
    "ElectraForPreTraining": "replaced",
}
"""How classes that no mapping names end."""


def _lengths(number: int, chance: random.Random) -> list[int]:
    """Return lengths from the shortest to the longest, in no order; the first differs from the last."""
    steps = max(number - 1, 1)
    lengths = [SHORTEST + (LONGEST - SHORTEST) * place // steps for place in range(number)]
    chance.shuffle(lengths)
    if lengths[:1] == lengths[-1:]:  # among many rows, some are equally long
        lengths[0] = SHORTEST + LONGEST - lengths[0]
    return lengths


def _text(model: PreTrainedModel, length: int, chance: random.Random) -> list[int]:
    """Return `length` tokens, none of them special; the last of some encoders' texts must be their end."""
    tokens = chance.choices(ordinary_ids(model.config), k=length)
    end = getattr(model.config, "eos_token_id", None)
    if (
        getattr(model.config, "is_encoder_decoder", False)
        and isinstance(end, int)
        and 0 <= end < vocabulary(model.config)
    ):
        tokens[-1] = end
    return tokens


def _some(labels: list[int], first: int, chance: random.Random) -> list[int]:
    """Leave out the labels of a prompt, which may have no token at all but leaves one label."""
    prompt = chance.randint(0, max(len(labels) - 1 - first, 0))
    return [IGNORED] * prompt + labels[prompt:]


def _causal(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    tokens = _text(model, length, chance)
    return {"input_ids": tokens, "labels": _some(list(tokens), 1, chance)}


def _masked(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    tokens = _text(model, length, chance)
    places = [place for place in range(length) if chance.random() < MASKED] or [chance.randrange(length)]
    labels = [token if place in places else IGNORED for place, token in enumerate(tokens)]
    mask = getattr(model.config, "mask_token_id", None)
    mask = mask if isinstance(mask, int) else ordinary_ids(model.config)[0]
    return {"input_ids": [mask if place in places else token for place, token in enumerate(tokens)], "labels": labels}


def _pretraining(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {**_masked(model, length, chance), "next_sentence_label": chance.randrange(2)}


def _replaced(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    tokens = _text(model, length, chance)
    return {"input_ids": tokens, "labels": [int(chance.random() < MASKED) for _ in tokens]}


def _sequence(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {"input_ids": _text(model, length, chance), "labels": _one_label(model, chance)}


def _one_label(model: PreTrainedModel, chance: random.Random) -> Any:
    """Return a class, a number, or several of them, as the problem of the model is."""
    labels, problem = int(model.config.num_labels), getattr(model.config, "problem_type", None)
    if problem == "multi_label_classification":
        return [float(chance.random() < 0.5) for _ in range(labels)]
    if problem == "regression" or labels == 1:
        values = [chance.gauss(0, 1) for _ in range(labels)]
        return values[0] if labels == 1 else values
    return chance.randrange(labels)


def _tokens(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    labels = [chance.randrange(model.config.num_labels) if chance.random() < 0.8 else IGNORED for _ in range(length)]
    labels[chance.randrange(length)] = chance.randrange(model.config.num_labels)
    return {"input_ids": _text(model, length, chance), "labels": labels}


def _target(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    target = chance.randint(SHORTEST, LONGEST)
    return {"input_ids": _text(model, length, chance), "labels": _text(model, target, chance)}


def _speech(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {**sound(model, chance), "labels": _text(model, length, chance)}


def _letters(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {**wave(model, chance), "labels": chance.choices(ordinary_ids(model.config), k=1 + length // 2)}


def _sound(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {**wave(model, chance), "labels": _one_label(model, chance)}


def _image(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    return {**picture(model, chance), "labels": _one_label(model, chance)}


def _picture_text(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    if getattr(model.config, "vision_config", True) is None:  # Gemma 4 comes without, too
        return _causal(model, length, chance)
    values = picture(model, chance)
    image = image_tokens(model, values)
    text = _text(model, length, chance)
    return {"input_ids": [*image, *text], "labels": [*[IGNORED] * len(image), *_some(list(text), 0, chance)], **values}


def _answer(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    start, end = sorted(chance.choices(range(length), k=2))
    return {"input_ids": _text(model, length, chance), "start_positions": start, "end_positions": end}


def _choice(model: PreTrainedModel, length: int, chance: random.Random) -> Row:
    texts = [_text(model, chance.randint(SHORTEST, length), chance) for _ in range(CHOICES)]
    return {"input_ids": texts, "labels": chance.randrange(CHOICES)}


MAKERS: dict[str, Callable[[PreTrainedModel, int, random.Random], Row]] = {
    "causal": _causal,
    "masked": _masked,
    "pretraining": _pretraining,
    "replaced": _replaced,
    "sequence": _sequence,
    "tokens": _tokens,
    "target": _target,
    "speech": _speech,
    "image": _image,
    "letters": _letters,
    "sound": _sound,
    "picture_text": _picture_text,
    "answer": _answer,
    "choice": _choice,
}

"""A tiny model of the user's kind: built from a configuration alone, saved, and loaded as any other."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.promises.shrink import tiny_config
from hf_efficient.promises.words import word_tokenizer
from hf_efficient.wording import one_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CAUSAL = "AutoModelForCausalLM"
AUTO = (
    CAUSAL,
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForImageClassification",
    "AutoModelForTokenClassification",
)
"""In this order, where a configuration names no class of its own."""
DEFAULT = 0.02
SHARPER = 5.0
"""Times the usual initial weights: gradients of the mean loss are then longer than 1, so that clipping at 1 clips."""
MOST = 3_000_000
"""Parameters of what still counts as tiny; nearly all have fewer than 300,000."""
CODE = "trust_remote_code"
REMEDY = "pass --data with the model itself, or --model with a smaller configuration"


def load_config(name: str) -> PreTrainedConfig:
    """Return the configuration of a Hub id or of a folder, in which config.json is enough.

    Raises ValueError where there is none, or one that needs code of its own.
    """
    from transformers import AutoConfig

    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"{name} has no config.json: check --model.")
    if name.startswith((".", "/", "~")) and not path.is_dir():
        raise ValueError(f"There is no folder {name}: check --model.")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(path) if path.is_dir() else name,
            trust_remote_code=False,  # said, because transformers would ask at the terminal
        )
    except Exception as error:  # whatever the Hub and the readers of configurations raise
        if "couldn't connect" in str(error):
            raise ValueError(
                f"There is no folder {name}, and the Hub cannot be asked for it: check the connection, or pass a "
                "folder with the model's config.json."
            ) from None
        why = "it needs code of its own, which is never run here" if CODE in str(error) else one_sentence(error)[:400]
        raise ValueError(
            f"Cannot read the configuration of {name}: {why}; choose a model that transformers has."
        ) from None
    return config


def head_class(config: PreTrainedConfig, fallback: str = CAUSAL) -> type[PreTrainedModel]:
    """Return the model class that `config` names, else that of the auto class `fallback`, else of another.

    A configuration of an encoder, or of one with a decoder or with images, is a causal language model last.

    Raises ValueError for a configuration whose class transformers does not have.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    bodies = [one for value in MODEL_MAPPING_NAMES.values() for one in ((value,) if isinstance(value, str) else value)]
    for name in getattr(config, "architectures", None) or ():
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and kind.__name__ == name and not (name.endswith("Model") and name in bodies):
            return kind
    for auto in _order(config, fallback):
        mapping = getattr(transformers, auto)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            known: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
            return known
    named = ", ".join(getattr(config, "architectures", None) or ()) or "no class"
    raise ValueError(
        f"The configuration names {named} of the type {config.model_type!r}, which transformers cannot build without "
        f"code from elsewhere: {REMEDY} of a model class that transformers has."
    )


def _order(config: PreTrainedConfig, fallback: str) -> Iterable[str]:
    """Return the auto classes in the order in which they are asked."""
    from transformers import AutoModelForMaskedLM

    first: tuple[str, ...] = (fallback,)
    if fallback == CAUSAL:  # transformers also knows the causal half of many models, which nobody trains alone
        if getattr(config, "is_encoder_decoder", False):
            first = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
        elif getattr(config, "vision_config", None) is not None:
            first = ("AutoModelForImageTextToText",)
        elif type(config) in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False):
            first = ("AutoModelForMaskedLM",)
    return dict.fromkeys((*first, *AUTO))


def tiny_model(config: PreTrainedConfig, *, seed: int = 0, **keywords: Any) -> PreTrainedModel:
    """Return a tiny model of the class and structure that `config` names, with random weights, ready to train.

    It is float32 unless `keywords`, those of `from_pretrained`, say otherwise: `model_keywords(plan)` is what a plan
    asks for. The same seed gives the same weights; the state of torch's generators stays as it was.

    Raises ValueError where the model cannot be made small.
    """
    if not keywords:
        return _built(config, seed)
    with tempfile.TemporaryDirectory() as folder:
        return load(tiny_folder(config, folder, seed=seed), **keywords)


def tiny_folder(config: PreTrainedConfig, folder: str | Path, *, seed: int = 0) -> Path:
    """Save the tiny model of `config` and a tokenizer of its 256 words to `folder`, and return that.

    Raises ValueError where the model cannot be made small.
    """
    model = _built(config, seed)
    try:
        model.save_pretrained(folder)
        word_tokenizer(model.config).save_pretrained(folder)
    except Exception as error:  # configurations check themselves again when they are saved
        raise _refusal(type(model), error) from None
    return Path(folder)


def load(folder: str | Path, **keywords: Any) -> PreTrainedModel:
    """Return the model in `folder`, loaded with the keywords of `from_pretrained`, ready to train."""
    from transformers import AutoConfig

    model: PreTrainedModel = head_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder, **keywords)
    return model.train()


def _built(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Return the tiny model with new weights."""
    import torch

    kind = head_class(config)
    try:
        small = tiny_config(config)
        _name_padding(small, kind)
        with torch.random.fork_rng(devices=[]):
            size = _size(small, kind)
            torch.manual_seed(seed)
            if size <= MOST:
                model: PreTrainedModel = kind(small).float()
                _sharpen(model)
    except Exception as error:  # whatever the checks and layers of several hundred classes raise
        raise _refusal(kind, error) from None
    if size > MOST:
        raise ValueError(f"A small {kind.__name__} cannot be built: it would have {size:,} parameters; {REMEDY}.")
    model.config.architectures = [kind.__name__]
    return model.train()


def _refusal(kind: type[PreTrainedModel], error: Exception) -> ValueError:
    why = one_sentence(error)[:300].rstrip(".")
    return ValueError(f"A small {kind.__name__} cannot be built from this configuration: {why}; {REMEDY}.")


def _size(config: PreTrainedConfig, kind: type[PreTrainedModel]) -> int:
    """Return how many parameters a model would have, without its memory: what did not shrink may be 70 billion."""
    import torch

    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(copy.deepcopy(config)).parameters())


def _name_padding(config: PreTrainedConfig, kind: type[PreTrainedModel]) -> None:
    """Name a padding token where a decoder that classifies has none: it must find the last token of each row."""
    text = config.get_text_config()
    if "ForSequenceClassification" in kind.__name__ and getattr(text, "pad_token_id", None) is None:
        config.pad_token_id = text.pad_token_id = word_tokenizer(config).pad_token_id


def _sharpen(model: PreTrainedModel) -> None:
    """Scale the matrices up; new models are so close to uniform guesses that their gradients are short."""
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():  # Gemma 3 starts its projector at 0, behind which nothing learns
                weight.normal_(std=DEFAULT)
            if weight.ndim > 1 and weight.std() < 2.5 * DEFAULT:  # T5's are wide enough
                weight.mul_(SHARPER)

"""The model that a run trains, as a class and a configuration; nothing is downloaded and no code of others is run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.doctor.probe_answer import NotProbedError
from hf_efficient.reading.settings import NOTHING, UNKNOWN
from hf_efficient.reading.setup import Setup

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NOTHING_TO_PROBE = "nothing to probe: name a model with --model"
OURS = {
    "class", "name", "config", "model_type", "architecture", "checkpoint_dtype", "load_dtype", "load_in_4bit",
    "load_in_8bit", "vocab_size", "hidden_size", "params", "training", "pretrained_model", "attn_implementation",
    "dtype", "torch_dtype", "quantization_config",
}  # fmt: skip
"""Keys of a setup's model that are no fields of its configuration, or are the real sizes."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, with the class and the configuration of its model; `said` is how a sentence names it."""

    setup: Setup
    config: PreTrainedConfig
    said: str

    @property
    def head(self) -> str:
        """Return the name of the model's class."""
        names = self.config.architectures
        return str(names[0]) if names else type(self.config).__name__

    def tiny(self, **keywords: Any) -> PreTrainedModel:
        """Return a tiny model of the class and structure, in training mode; `keywords` are those of from_pretrained."""
        from hf_efficient.promises.tiny import REMEDY, tiny_model

        try:
            return tiny_model(self.config, **keywords)
        except ValueError as error:  # its remedy is one of `verify`
            raise NotProbedError(str(error).partition(f"; {REMEDY}")[0]) from None

    def batch(self, model: Any, rows: int = 4) -> dict[str, Any]:
        """Return a batch of made rows for the head of a tiny model."""
        return self.batches(model, rows, 1)[0]

    def batches(self, model: Any, rows: int, number: int) -> list[dict[str, Any]]:
        """Return batches of made rows of unequal length."""
        from hf_efficient.promises.batches import collate
        from hf_efficient.promises.rows import made_rows
        from hf_efficient.promises.words import word_tokenizer

        model = getattr(model, "get_base_model", lambda: model)()
        try:
            made = made_rows(model, rows * number)
        except ValueError:
            raise NotProbedError(f"no rows can be made for a {self.head}") from None
        together = collate(model, word_tokenizer(model.config))
        return [together(made[start : start + rows]) for start in range(0, len(made), rows)]


def subject_of(setup: Setup) -> Subject:
    """Return the model of a run: by its config.json, else by the class and its defaults.

    Raises NotProbedError where neither is known to transformers.
    """
    from hf_efficient.promises.tiny import head_class

    model = setup.model or NOTHING
    asked = model.text("class").rpartition(".")[2]
    if setup.script is not None and asked in setup.script.classes:
        raise NotProbedError(f"{asked} is a class of the script, which is not executed")
    fields = model.get("config")
    fields = fields if isinstance(fields, Mapping) else next(_beside(setup), None)
    config, said = _from_fields(fields) if fields is not None else _from_class(asked, model.text("model_type"))
    for key, value in model.values.items():
        if key not in OURS and value is not UNKNOWN and isinstance(value, str | int | float) and hasattr(config, key):
            setattr(config, key, value)
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # released ones have it
    config.architectures = [_class_name(asked, config) or head_class(config).__name__]
    return Subject(setup, config, f"a tiny {config.architectures[0]} {said}")


def _from_fields(fields: Mapping[str, Any]) -> tuple[PreTrainedConfig, str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = fields.get("model_type")
    if "auto_map" in fields:
        raise NotProbedError("its config.json names code of its own (auto_map), which is never run here")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise NotProbedError(f"its config.json has the model_type {kind!r}, which the installed transformers has not")
    config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(dict(fields))
    return config, "of this configuration"


def _from_class(asked: str, kind: str) -> tuple[PreTrainedConfig, str]:
    """Return the default configuration of a class, or of a model_type that is given beside an Auto class."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found = getattr(transformers, asked, None) if asked and not asked.startswith("Auto") else None
    made = getattr(found, "config_class", None)
    if made is None and kind and kind in CONFIG_MAPPING:
        made = CONFIG_MAPPING[kind]
    if made is None:
        raise NotProbedError(NOTHING_TO_PROBE)
    config: PreTrainedConfig = made()
    return config, f"with the defaults of {type(config).__name__}"


def _class_name(asked: str, config: PreTrainedConfig) -> str:
    """Return the class that a script names, as it is or through an Auto class's mapping; empty: the configuration's."""
    import transformers

    found: Any = getattr(transformers, asked, None) if asked else None
    mapping = getattr(found, "_model_mapping", None)
    if mapping is not None:
        if type(config) not in mapping:
            raise NotProbedError(f"{asked} has no class for {type(config).__name__}")
        kinds = mapping[type(config)]
        return str((kinds[0] if isinstance(kinds, tuple) else kinds).__name__)
    wanted = getattr(found, "config_class", None)
    if wanted is None:
        return ""
    if not isinstance(config, wanted):
        raise NotProbedError(f"{asked} is made from {wanted.__name__} and the configuration is {type(config).__name__}")
    return asked


def _beside(setup: Setup) -> Iterator[Mapping[str, Any]]:
    """Yield the config.json of a folder that from_pretrained names, beside the files or in the working folder."""
    name = (setup.model or NOTHING).text("name")
    if not name:
        return
    for folder in (*(Path(file).parent for file in setup.files), Path()):
        path = folder / name / "config.json"
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(fields, Mapping):
            yield fields

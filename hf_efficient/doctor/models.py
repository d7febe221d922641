"""The model that a user names to check against: a folder's config.json, or a Hub id's."""

from __future__ import annotations

import json
from pathlib import Path

from hf_efficient.finding import Place
from hf_efficient.reading.settings import Settings
from hf_efficient.wording import one_sentence


def named_model(name: str) -> Settings:
    """Return the model of a folder or Hub id, by its config.json alone. Raises ValueError where there is none."""
    path = Path(name)
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ValueError(f"There is no folder {name} for --model: name a folder with a config.json, or a Hub id.")
    file = path / "config.json" if path.is_dir() else path if path.is_file() else _from_hub(name)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The model {name} has no readable config.json ({one_sentence(error)}): name another."
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no model's configuration, because it holds no mapping: name another.")
    return Settings({"name": name, "config": config}, place=Place(str(file)))


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it tells of every retry
    try:
        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached if isinstance(cached, str) else hf_hub_download(name, "config.json"))
    except Exception as error:  # the Hub has a dozen kinds, from an invalid id to no network
        kind = type(error).__name__
        raise ValueError(
            f"The config.json of {name} cannot be had from the Hub ({kind}): mind the name and the network, or name a"
            " folder that has it."
        ) from None

"""A setup document (a mapping, however it was written) becomes a Setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.finding import NOWHERE, Place
from hf_efficient.reading.engine import with_engines
from hf_efficient.reading.installed import trainer_fields
from hf_efficient.reading.machines import machine_settings
from hf_efficient.reading.models import model_settings
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import SUBJECTS, Setup
from hf_efficient.renames import FIELDS, SFT
from hf_efficient.wording import listed, nearest

KEYS = (*SUBJECTS, "processes", "launcher", "script")
"""Top-level keys of a setup document."""


def from_document(
    document: Mapping[str, Any], *, place: Place = NOWHERE, places: Mapping[str, Place] | None = None
) -> Setup:
    """Return the setup that a document describes, as it stands: see `settled`.

    Raises ValueError for what is no setup document.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"A setup is a mapping of {listed(KEYS, 'or')}, not {type(document).__name__}.")
    strange = [str(key) for key in document if key not in KEYS]
    if strange:
        close = nearest(strange[0], KEYS)
        remedy = f"did you mean {close}?" if close else f"there are {listed(KEYS)}."
        raise ValueError(f"A setup has no key {strange[0]!r}: {remedy}")
    subjects: dict[str, Any] = {
        key: _subject(key, document[key], place, places or {}) for key in SUBJECTS if key in document
    }
    processes, launcher, text = (document.get(key) for key in ("processes", "launcher", "script"))
    return Setup(
        **subjects,
        processes=processes if isinstance(processes, int) and not isinstance(processes, bool) else None,
        launcher=launcher if isinstance(launcher, str) else None,
        script=Script(text, place.file or "script") if isinstance(text, str) else None,
        files=(place.file,) if place.file else (),
    )


def settled(setup: Setup) -> Setup:
    """Return the setup with the stack's defaults, the card's figures, one spelling of dtypes, and its engines."""
    trainer, sft = setup.trainer, setup.sft
    if sft is not None:
        sft = trainer = _with_defaults(sft if trainer is None else sft.over(trainer), sft=True)
    elif trainer is not None:
        trainer = _with_defaults(trainer, sft=False)
    return with_engines(
        setup.having(
            trainer=trainer,
            sft=sft,
            model=model_settings(setup.model) if setup.model is not None else None,
            machine=machine_settings(setup.machine) if setup.machine is not None else None,
        )
    )


def _with_defaults(settings: Settings, *, sft: bool) -> Settings:
    return _followed(settings, sft).over(Settings(defaults=trainer_fields(sft), place=settings.place))


def _followed(settings: Settings, sft: bool) -> Settings:
    """Return settings with what stands under dropped names under the new ones too, where those are absent.

    Else every check would reason from the new name's default, against what the file asks for.
    """
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for name, rename in (FIELDS | SFT if sft else FIELDS).items():
        if name not in settings.values or rename.works or not rename.new or rename.new in settings.values:
            continue
        value = settings.values[name]
        new = value if value is UNKNOWN or rename.becomes is None else rename.becomes(value)
        if new is not None:
            before: Any = values.get(rename.new)
            both = isinstance(before, Mapping) and isinstance(new, Mapping)
            values[rename.new] = {**before, **new} if both else new
            places[rename.new] = settings.where(name)
    return settings.over(Settings(values, places=places)) if values else settings


def _subject(name: str, value: Any, place: Place, places: Mapping[str, Place]) -> Settings:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} of a setup is a mapping of its keys to values, not {value!r:.60}.")
    below = {key.removeprefix(f"{name}."): at for key, at in places.items() if key.startswith(f"{name}.")}
    return Settings(value, place=places.get(name, place), places=below)

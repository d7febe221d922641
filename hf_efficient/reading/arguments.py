"""Words after a script's name as its arguments, typed as HfArgumentParser and its users would."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hf_efficient.finding import Place
from hf_efficient.reading.installed import trainer_fields
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.shell import Word

INTEGER = re.compile(r"[+-]?\d{1,18}")
FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
TRUTH = {
    "true": True, "t": True, "yes": True, "y": True, "1": True, "false": False, "f": False, "no": False, "n": False,
    "0": False,
}  # fmt: skip


def is_flag(word: Word) -> bool:
    """Is the word an option and no negative number?"""
    text = word.text
    return text.startswith("-") and len(text) > 1 and not FLOAT.fullmatch(text)


def flag_name(word: Word) -> str:
    """Return an option's name without dashes in front and with underscores inside, and without `=value`."""
    return word.text.partition("=")[0].lstrip("-").replace("-", "_")


def literal(word: Word) -> Any:
    """Return the word as a bool, a number, a mapping (of JSON) or a string; UNKNOWN where it cannot be known."""
    text = word.text
    if not word.known:
        return UNKNOWN
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def grouped(words: Sequence[Word]) -> Iterator[tuple[Word, list[Word]]]:
    """Yield every option with the values after it, and the words before the first one with an empty option."""
    option, values = Word(""), list[Word]()
    for word in words:
        if not is_flag(word):
            values.append(word)
            continue
        if option.text or values:
            yield option, values
        _, equals, value = word.text.partition("=")
        option, values = word, [word._replace(text=value)] if equals else []
    if option.text or values:
        yield option, values


def arguments(words: Sequence[Word], place: Place) -> Settings:
    """Return what a script is told. The last of an option given twice counts; a bare one is True.

    Open where a variable that cannot be known may hold further options.
    """
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    open = False
    for option, given in grouped(words):
        name = flag_name(option)
        alone = bool(name) and len(given) == 1 and not _spreads(given[0]) and not isinstance(_fields().get(name), bool)
        more = any(word.many for word in given) and not alone
        open = open or more or option.many
        if name and (option.known or "=" in option.text):
            key, value = (name, UNKNOWN) if more or (alone and given[0].many) else _value(name, given)
            values[key] = value
            places[key] = Place(place.file, option.line)
    return Settings(values, place=place, places=places, open=open)


def _spreads(word: Word) -> bool:
    """Does the word stand for all arguments, or a whole array?"""
    return (word.many and word.raw in ("$@", "$*", "${@}", "${*}")) or "[@]" in word.raw or "[*]" in word.raw


@cache
def _fields() -> Mapping[str, Any]:
    """Return the fields with their defaults; where SFTConfig has none and TrainingArguments a bool, it is a bool."""
    return dict(trainer_fields(sft=True)) | {k: v for k, v in trainer_fields().items() if isinstance(v, bool)}


def _value(name: str, given: Sequence[Word]) -> tuple[str, Any]:
    fields = _fields()
    if not given:
        positive = name.removeprefix("no_")
        return (positive, False) if name != positive and fields.get(positive) is True else (name, True)
    default = fields.get(name)
    if len(given) == 1 and given[0].known and isinstance(default, bool):
        return name, TRUTH.get(given[0].text.lower(), literal(given[0]))
    if len(given) == 1 and given[0].known and isinstance(default, str) and not given[0].text.startswith("{"):
        return name, given[0].text
    return name, literal(given[0]) if len(given) == 1 else [literal(word) for word in given]

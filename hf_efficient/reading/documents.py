"""A mapping becomes a part: its kind, its settings with their places, and what its keys alone show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.finding import Finding, Place, error, info
from hf_efficient.reading.detect import kind_of, near
from hf_efficient.reading.document import KEYS, from_document
from hf_efficient.reading.parts import Part
from hf_efficient.reading.refusal import UNREADABLE, stranger
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import SUBJECTS
from hf_efficient.reading.structured import Document
from hf_efficient.wording import listed, one_sentence


def part_of(document: Document, file: str, *, name: str, yaml: bool = False) -> Part:
    """Return what a mapping turned out to be. Raises Unreadable for what is none of the doctor's kinds."""
    value = document.value
    if not isinstance(value, Mapping) or not value:
        shape = "an empty mapping" if value == {} else f"a {type(value).__name__} and no mapping of keys to values"
        raise stranger(file, f"was not recognised: it holds {shape}")
    kind = kind_of(value, name)
    if kind == "setup":
        return _setup(document, file)
    if kind not in ("launch", "deepspeed", "config", "arguments"):
        raise stranger(file, kind, fix=_advice(kind))
    settings = Settings(value, place=Place(file), places=document.places)
    more = (_not_json(file),) if yaml and kind == "deepspeed" else ()
    return Part(kind=kind, file=file, settings=settings, findings=(*document.findings, *more))  # type: ignore[arg-type]


def _advice(kind: str) -> str:
    """Return what to name instead."""
    if kind == "is a notebook":
        return "Make a script of it (`jupyter nbconvert --to script NOTEBOOK`) and name that."
    if kind in ("is the state of a Trainer", "is an adapter's configuration", "is an index of weights"):
        return "Name the folder that it stands in."
    return ""


def _setup(document: Document, file: str) -> Part:
    """Return a setup document; a key that it has not is told, and the others still count."""
    found: list[Finding] = []
    good: dict[str, Any] = {}
    for key, value in document.value.items():
        wrong = _wrong(key, value, file, document)
        found.extend(wrong)
        if not wrong and value is not None:
            good[key] = value
    setup = from_document(good, place=Place(file), places=document.places)
    return Part(kind="setup", file=file, setup=setup, findings=(*document.findings, *found))


def _wrong(key: str, value: Any, file: str, document: Document) -> list[Finding]:
    """Return what is wrong with one key of a setup document: its name, its shape, or a script that is no Python."""
    at = document.places.get(key, Place(file))
    if key not in KEYS:
        close = near(key, "setup")
        fix = f"Did you mean {close}?" if close else f"There are {listed(KEYS)}."
        why = "What stands under it was not checked."
        return [error(f"A setup has no key {key!r}", why=why, fix=fix, at=at).coded("setup-key")]
    if key in SUBJECTS and not isinstance(value, Mapping | None):
        what = f"{key} of a setup is a mapping of its keys to values, not {value!r:.60}"
        return [error(what, why="It was not checked.", fix=f"Write `{key}: {{key: value}}`.", at=at).coded("setup-key")]
    return list(_bad_script(value, at)) if key == "script" and isinstance(value, str) else []


def _bad_script(source: str, at: Place) -> Iterator[Finding]:
    try:
        Script(source, at.file)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        line = f" (line {wrong.lineno} of it)" if isinstance(wrong, SyntaxError) else ""
        told = (wrong.msg if isinstance(wrong, SyntaxError) else one_sentence(wrong)[:200]) + line
        yield error(
            f"script of the setup is not Python: {told}",
            why="It was not checked; the rest of the setup was.",
            fix="Mend that line.",
            at=at,
        ).coded(UNREADABLE)


def _not_json(file: str) -> Finding:
    return info(
        f"{file} is DeepSpeed's configuration as YAML",
        why="accelerate and transformers read a file that `deepspeed` or `deepspeed_config_file` names with json.load, "
        "which stops at YAML; only a script that makes a dict of it first can use it.",
        fix="Save it as JSON.",
        at=Place(file),
    ).coded("deepspeed-file-is-yaml")

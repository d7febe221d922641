"""What a script is told on its command line or in a file: fields of TrainingArguments, and of the model."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher

from hf_efficient.reading.installed import trainer_fields
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.renames import FIELDS
from hf_efficient.wording import nearest

MODEL = {
    "model_name_or_path": "name",
    "dtype": "load_dtype",
    "torch_dtype": "load_dtype",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "attn_implementation": "attn_implementation",
}
"""Arguments of TRL's and transformers' example scripts that are about the model."""
PEFT = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
}
ALIKE = 0.85
"""From there on a name is taken for a misspelled field and not for an argument of the script's own."""


def arguments_setup(run: Setup, told: Settings) -> Setup:
    """Return a run with what it is told over what its script says; names that are no field stay out.

    What a script parses is known as soon as it is told, so the rest is at its defaults.
    """
    names = [name for name in told if _is_field(name, run)]
    model = {MODEL[name]: told.get(name) for name in told if name in MODEL}
    peft = {PEFT[name]: told.get(name) for name in told if name in PEFT} if told.on("use_peft") else {}
    owner = run.sft if run.sft is not None else run.trainer
    if names:
        said = Settings(
            {name: told.get(name) for name in names},
            place=told.place,
            places={name: told.where(name) for name in names},
            open=told.open,
        )
        both = said.over(owner) if owner is not None else said
        both.open = told.open if owner is not None and owner.open and _parses(run) else both.open
        run = replace(run, sft=both) if run.sft is not None else replace(run, trainer=both)
    if model:
        at = {MODEL[name]: told.where(name) for name in told if name in MODEL}
        run = replace(run, model=Settings(model, place=told.place, places=at).over(run.model or Settings()))
    if peft:
        run = replace(run, peft=Settings(peft, place=told.place).over(run.peft or Settings()))
    return run


def _parses(run: Setup) -> bool:
    return run.script is not None and bool(run.script.named("HfArgumentParser", "TrlParser"))


def _is_field(name: str, run: Setup) -> bool:
    fields = trainer_fields(True)
    if name in fields or name in FIELDS:
        return True
    close = nearest(name, fields) if name not in MODEL and name not in PEFT else ""
    return bool(close) and SequenceMatcher(None, name, close).ratio() >= ALIKE

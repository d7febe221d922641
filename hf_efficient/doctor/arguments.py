"""What a script is told on its command line or in a file: fields of TrainingArguments, and of the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from hf_efficient.reading.installed import trainer_fields
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_trainer import PARSERS
from hf_efficient.reading.script_values import put
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.renames import FIELDS, SFT, TRL_MODEL
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
SFT_ONLY = {
    "packing", "eval_packing", "packing_strategy", "padding_free", "dataset_text_field", "dataset_kwargs",
    "completion_only_loss", "assistant_only_loss",
}  # fmt: skip
"""Fields of SFTConfig that no other arguments have: a file that says one is for TRL's SFT."""
OTHERS = frozenset({"accelerate_config", "num_warmup_steps", "per_device_batch_size", "gradient_accumulation"})
"""Names that look like a field and are what `trl` hands on to accelerate, or of scripts with a loop of their own."""
ALIKE = 0.85
"""From there on a name is taken for a misspelled field and not for an argument of the script's own."""


def arguments_setup(run: Setup, told: Settings, *, named: bool = False) -> Setup:
    """Return a run with what it is told over what its script says; names that are no field stay out.

    What a script parses is known as soon as it is told, so the rest is at its defaults. A script that parses in a way
    of its own takes an argument where it writes `key=args.name`, and nowhere else. `named`: the script itself names
    the file and hands all of it on.
    """
    script = run.script
    if script is not None and _takes_none(run, script):
        return _spliced(run, script, told)
    if run.script is None and run.sft is None and SFT_ONLY & set(told):
        run = replace(run, sft=run.trainer or Settings(), trainer=None)
    names = [name for name in told if _is_field(name, run) or (name in TRL_MODEL and _trl_reads(run))]
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
        both.open = told.open if owner is not None and owner.open and (named or _parses(run)) else both.open
        same = run.sft is None or run.trainer is run.sft
        run = replace(run, sft=both if run.sft is not None else None, trainer=both if same else run.trainer)
    if model:
        at = {MODEL[name]: told.where(name) for name in told if name in MODEL}
        run = replace(run, model=Settings(model, place=told.place, places=at).over(run.model or Settings()))
    if peft:
        run = replace(run, peft=Settings(peft, place=told.place).over(run.peft or Settings()))
    return run


def _trl_reads(run: Setup) -> bool:
    """Is what the run is told read by TRL's own parser, into its ModelConfig too?"""
    script = run.script
    return run.sft is not None and (
        script is None or (bool(script.named("TrlParser")) and "trl.ModelConfig" in script.imports.values())
    )


def _parses(run: Setup) -> bool:
    return run.script is not None and bool(run.script.named(*PARSERS))


def _takes_none(run: Setup, script: Script) -> bool:
    """Is it seen that the script fills no training arguments from its command line or from a file as a whole?"""
    whole = run.sft if run.sft is not None else run.trainer
    shown = whole is not None or run.accelerator is not None or bool(script.training_loops)
    return shown and not _parses(run) and not (whole is not None and whole.open)


def _spliced(run: Setup, script: Script, told: Settings) -> Setup:
    """Return a run with what it is told in the keywords that the script takes from an attribute of that name."""
    filled: dict[str, Any] = {}
    for subject in ("trainer", "sft", "accelerator", "dataloader", "model", "peft", "optimizer"):
        settings: Settings | None = getattr(run, subject)
        made = [call for call in script.calls if settings is not None and call.place == settings.place]
        if settings is not None and made:
            filled[subject] = _taken(made[0], settings, told)
    return replace(run, **filled)


def _taken(call: Call, settings: Settings, told: Settings) -> Settings:
    """Return the keywords of a call with the unknown ones of the form `key=args.name` filled."""
    made = Settings().over(settings)
    for key, node in _given(call):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if name in told and settings.said(key) and settings.get(key) is UNKNOWN:
            put(made, key, told.get(name), told.where(name))
    return made


def _given(call: Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keywords of a call with their expressions; what `from_pretrained` loads is its `name`."""
    yield from call.expressions.items()
    if call.method == "from_pretrained":
        first = call.node.args[0] if call.node.args else call.expressions.get("pretrained_model_name_or_path")
        yield from [("name", first)] if first is not None else []


def _is_field(name: str, run: Setup) -> bool:
    fields = trainer_fields(True)
    if name in fields or name in FIELDS or name in SFT:
        return True
    close = nearest(name, fields) if name not in {*MODEL, *PEFT, *OTHERS} else ""
    return bool(close) and SequenceMatcher(None, name, close).ratio() >= ALIKE

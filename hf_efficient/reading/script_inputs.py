"""What goes into a training of a script: rows, collator, loader, and what evaluates it."""

from __future__ import annotations

import ast

from hf_efficient.reading.flow import Around
from hf_efficient.reading.lineage import argument, inside, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_classes import is_trainer
from hf_efficient.reading.script_data import padded_before, read_collator, read_dataset, rows_of
from hf_efficient.reading.script_trainer import SECOND, own_init
from hf_efficient.reading.script_values import put
from hf_efficient.reading.settings import UNKNOWN, Settings


def loader_settings(loader: Call | None) -> Settings | None:
    """Return the keywords of a DataLoader, without its dataset."""
    if loader is None:
        return None
    said = loader.settings()
    said.values.pop("dataset", None)
    for name, value in zip(("batch_size", "shuffle"), loader.args[1:], strict=False):
        put(said, name, value, loader.place)
    return said


def read_data(script: Script, trainer: Call | None, loader: Call | None, sft: Settings | None) -> Settings | None:
    """Return what the rows to train on are, and how they are made one batch; None where nothing says so."""
    owner = trainer or loader
    if owner is None:
        return None
    data = Settings(place=owner.place)
    node = argument(owner, "train_dataset", 3) if trainer is not None else argument(owner, "dataset", 0)
    read_dataset(script, node, inside(owner), data)
    collator = argument(owner, "data_collator", 2) if trainer is not None else argument(owner, "collate_fn")
    if is_trainer(script, owner.name) in SECOND:
        collator = argument(owner, "data_collator")
    if collator is not None:
        read_collator(script, collator, inside(owner), data)
    elif is_trainer(script, owner.name) in ("Trainer", "Seq2SeqTrainer") and not owner.open:
        _default_collator(script, owner, data)
    if argument(owner, "worker_init_fn") is not None and loader is not None:
        put(data, "sharded_by_worker", True, owner.place)
    if sft is not None:
        _packed(sft, data)
    padded_before(script, data)
    return data if data.values else None


def _packed(sft: Settings, data: Settings) -> None:
    """Write packing, and the padding of SFTTrainer's own collator where nothing is packed."""
    if sft.said("packing"):
        put(data, "packing", sft.get("packing"), sft.where("packing"))
    if sft.off("packing") and sft.off("padding_free") and "collator" not in data.values:
        put(data, "padding", "longest", sft.place)
        if sft.said("pad_to_multiple_of"):
            put(data, "pad_to_multiple_of", sft.get("pad_to_multiple_of"), sft.where("pad_to_multiple_of"))


def _default_collator(script: Script, trainer: Call, data: Settings) -> None:
    """Write what Trainer does without a collator: it pads to the longest row where it has a tokenizer."""
    names = ("processing_class", "tokenizer")
    node = next((n for name in names if (n := argument(trainer, name)) is not None), None)
    value = script.value(node, inside(trainer)) if node is not None else None
    put(data, "padding", "none" if value is None else "longest", trainer.place)


def read_evaluation(script: Script, trainer: Call | None) -> Settings | None:
    """Return what a Trainer evaluates with."""
    if trainer is None:
        return None
    found = Settings(place=trainer.place, open=trainer.open or own_init(script, trainer))
    for key, position in (("eval_dataset", 4), ("compute_metrics", None), ("preprocess_logits_for_metrics", None)):
        known = is_trainer(script, trainer.name) not in SECOND
        node = argument(trainer, key, position if known else None)
        if node is None:
            if not found.open:
                put(found, key, UNKNOWN if key in trainer.keywords else False, trainer.place)
            continue
        put(found, key, _given(script, node, inside(trainer)), script.place(node))
        rows = rows_of(script, node, inside(trainer)) if key == "eval_dataset" else None
        if rows is not None:
            put(found, "rows", rows, script.place(node))
    return found


def _given(script: Script, node: ast.expr, around: Around) -> bool:
    """Is something given (not None)? UNKNOWN where a condition decides."""
    value = script.value(node, around)
    parts = lineage(script, node, around)
    nones = [one for one, _ in parts.literals if isinstance(one, ast.Constant) and one.value is None]
    return False if value is None else UNKNOWN if nones else True

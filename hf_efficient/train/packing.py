"""Documents side by side in one row, and the proof that a model keeps them apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from hf_efficient.emit.head import NotMadeForError, shifts_labels
from hf_efficient.plan import Plan

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

Collate = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
LENGTHS = (5, 6)
"""Tokens of the two documents of the trial."""


def pack(plan: Plan, dataset: Dataset, *, max_length: int) -> Dataset:
    """Return `dataset` with its documents packed into rows of at most `max_length` tokens, if the plan packs.

    The rows need `input_ids`, and `labels` where not every token is one; what an `attention_mask` masks is dropped, and
    other columns are too. A column `seq_lengths` says how long the documents of a row are; `make_collator` reads it.
    Without packing in the plan the dataset is returned as it is.

    Raises ValueError in one sentence for data that cannot be packed, such as rows that are packed already.
    """
    if not plan["collator"].get("padding_free"):
        return dataset
    _check(dataset, max_length)
    from trl import pack_dataset

    columns = [name for name in ("input_ids", "labels") if name in dataset.column_names]
    if "attention_mask" in dataset.column_names:
        dataset = dataset.map(_without_padding, fn_kwargs={"columns": columns}, desc="Taking padding out")
    kept = dataset.select_columns(columns).filter(lambda row: len(row["input_ids"]) > 0, desc="Leaving out empty rows")
    if not len(kept):
        raise ValueError("There is no document to pack: every row is empty.")
    return pack_dataset(kept, max_length, plan["collator"]["strategy"])


def _check(dataset: Any, max_length: Any) -> None:
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        raise ValueError(f"pack takes a datasets.Dataset, one split of it, and not a {type(dataset).__name__}.")
    if not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < 2:
        raise ValueError(f"max_length must be a whole number of at least 2 tokens, not {max_length!r}.")
    if "seq_lengths" in dataset.column_names:
        raise ValueError(
            "These rows are packed already: they have a column seq_lengths. Pack the documents themselves."
        )
    if "input_ids" not in dataset.column_names:
        found = ", ".join(dataset.column_names) or "none"
        raise ValueError(f"pack needs a column input_ids, and the data have {found}: tokenise them first.")
    if others := sorted(
        {"pixel_values", "image_grid_thw", "input_features", "input_values"} & set(dataset.column_names)
    ):
        raise NotMadeForError(f"packing lays tokens side by side and would drop {', '.join(others)}: leave it out.")
    first = dataset[0] if len(dataset) else {}
    for name in {"input_ids", "labels"} & first.keys():
        if not hasattr(first[name], "__len__") or (len(first[name]) and hasattr(first[name][0], "__len__")):
            raise ValueError(f"pack needs a list of numbers per row in {name}, and the first row has {first[name]!r}.")


def _without_padding(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    there = [bool(kept) for kept in row["attention_mask"]]
    return {name: [value for value, kept in zip(row[name], there, strict=True) if kept] for name in columns}


def keep_documents_apart(model: Any, collate: Collate) -> None:
    """Turn the model's cache off, and raise NotMadeForError where a packed document sees another one.

    Two documents of a few tokens are run packed: the logits of the second must not depend on what the first says, and
    must be those that it has alone. transformers masks packed rows by their restarted positions only without a cache.
    A model whose weights are sharded, or whose attention kernel cannot run where the weights lie now, is not tried,
    and a warning says so.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    name = type(model).__name__
    if not shifts_labels(model):
        raise NotMadeForError(f"packing is made for causal language models, and {name} is none: leave it out.")
    if not _takes_positions(model):
        raise NotMadeForError(f"packing keeps documents apart by their positions, and {name} takes none: leave it out.")
    model.config.use_cache = False
    if reason := _cannot_run(model):
        warnings.warn(
            f"packing was not tried on {name}, since {reason}: that it keeps documents apart is its word.", stacklevel=3
        )
        return
    distance, rounding = _mixing(model, collate)
    if not distance <= rounding:
        raise NotMadeForError(
            f"packing would mix documents in {name}: beside another one, a document's logits are {distance:.2%} off. "
            "Leave packing out (length_grouping saves padding too), or take another attention."
        )


def _mixing(model: Any, collate: Collate) -> tuple[float, float]:
    """Return how far a document's logits are off beside another one, relative L2, and how far rounding may take them.

    Beside another first document of the same length the computation is the same: a difference is a leak, down to a
    quarter of the dtype's rounding (experts that get other tokens may sum in another order). Alone, it is done in
    another shape, in which the logits may be off by a few roundings.
    """
    import torch

    vocabulary, total = model.get_input_embeddings().weight.shape[0], sum(LENGTHS)
    tokens = [(7 * position + 3) % vocabulary for position in range(total)]
    others = [(5 * position + 11) % vocabulary for position in range(LENGTHS[0])]
    second = tokens[LENGTHS[0] :]
    rows = ((tokens, LENGTHS), ([*others, *second], LENGTHS), (second, LENGTHS[1:]))
    batches = [{"input_ids": ids, "seq_lengths": list(lengths)} for ids, lengths in rows]
    packed, beside, alone = (_logits(model, collate, row) for row in batches)
    seen, same = packed[LENGTHS[0] : total].float(), beside[LENGTHS[0] : total].float()
    eps = torch.finfo(packed.dtype).eps
    leak, shift = float((same - seen).norm()), float((alone[: LENGTHS[1]].float() - seen).norm())
    size = float(seen.norm())
    if leak > max(1e-5, eps / 4) * size:
        return leak / size, eps / 4
    return shift / size, max(1e-4, 4 * eps)


def _logits(model: Any, collate: Collate, row: Mapping[str, Any]) -> Tensor:
    """Return the logits, tokens x vocabulary, of one row without dropout."""
    import torch

    parameter = next(model.parameters())
    batch = {key: value for key, value in collate([row]).items() if key != "labels"}
    on_device = {k: v.to(parameter.device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            logits: Tensor = model(**on_device).logits[0]
    finally:
        for module, training in modes.items():  # each its own: some may be kept in evaluation
            module.training = training
    return logits


def _takes_positions(model: Any) -> bool:
    base = getattr(model, "get_base_model", lambda: model)()
    return "position_ids" in signature(base.forward).parameters


def _cannot_run(model: Any) -> str:
    """Say why the model cannot be run as it is now, or nothing."""
    parameter = next(model.parameters())
    if hasattr(parameter, "ds_id") or type(parameter).__name__ == "DTensor" or parameter.is_meta:
        return "its weights are sharded or not there yet"
    kernel = str(getattr(model.config, "_attn_implementation", ""))
    on_cpu = "flash" in kernel and parameter.device.type == "cpu"
    return f"{kernel} does not run on a CPU, where it is now" if on_cpu else ""

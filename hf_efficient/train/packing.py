"""Documents side by side in one row, and the proof that a model keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan
from hf_efficient.train.windows import shifts_labels

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

Collate = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
LENGTHS = (5, 6)
"""Tokens of the two documents of the trial."""


def pack(plan: Plan, dataset: Dataset, *, max_length: int) -> Dataset:
    """Return `dataset` with its documents packed into rows of at most `max_length` tokens, if the plan packs.

    The rows need `input_ids`, and `labels` where not every token is one. A column `seq_lengths` says how long the
    documents of a row are; `make_collator` reads it. Without packing in the plan the dataset is returned as it is.
    """
    if not plan["collator"].get("padding_free"):
        return dataset
    from trl import pack_dataset

    columns = [name for name in ("input_ids", "labels") if name in dataset.column_names]
    return pack_dataset(dataset.select_columns(columns), max_length, plan["collator"]["strategy"])


def keep_documents_apart(model: Any, collate: Collate) -> None:
    """Turn the model's cache off, and raise ValueError where a packed document sees another one.

    Two documents of a few tokens are run packed and the second one alone: its logits must be the same. transformers
    masks packed rows by their restarted positions only without a cache. A model whose weights are sharded, or whose
    attention kernel cannot run where the weights lie now, is not tried.
    """
    if not shifts_labels(model):
        raise ValueError(
            f"packing is made for causal language models, and {type(model).__name__} is none: leave it out."
        )
    if not _takes_positions(model):
        raise ValueError(
            f"packing keeps documents apart by their positions, and {type(model).__name__} takes none: leave it out."
        )
    model.config.use_cache = False
    if not _can_run(model):
        return
    import torch

    vocabulary, total = model.get_input_embeddings().weight.shape[0], sum(LENGTHS)
    tokens = [(7 * position + 3) % vocabulary for position in range(total)]
    second = tokens[LENGTHS[0] :]
    packed = _logits(model, collate, {"input_ids": tokens, "seq_lengths": list(LENGTHS)})[LENGTHS[0] : total]
    alone = _logits(model, collate, {"input_ids": second, "seq_lengths": [LENGTHS[1]]})[: LENGTHS[1]]
    rounding = max(1e-4, 4 * torch.finfo(packed.dtype).eps)
    distance = float((packed.float() - alone.float()).norm() / alone.float().norm())
    if not distance <= rounding:
        raise ValueError(
            f"packing would mix documents in {type(model).__name__}: beside another one, a document's logits are "
            f"{distance:.1%} off. Leave packing out (length_grouping saves padding too), or take another attention."
        )


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


def _can_run(model: Any) -> bool:
    """Say whether the model can be run as it is now: whole, and with its attention kernel's device."""
    parameter = next(model.parameters())
    sharded = hasattr(parameter, "ds_id") or type(parameter).__name__ == "DTensor" or parameter.is_meta
    kernel = str(getattr(model.config, "_attn_implementation", ""))
    return not sharded and not ("flash" in kernel and parameter.device.type == "cpu")

"""The sampler that a plan asks for by name, built for the data that it is to order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.plan import Plan

GROUPED = "group_by_length"


def grouped(plan: Plan) -> bool:
    """Say whether `plan` wants rows of similar length together."""
    return bool(plan["dataloader"].get("sampler") == GROUPED)


def with_sampler(plan: Plan, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of DataLoader with the plan's sampler in place of its name and of `shuffle`.

    Raises ValueError in one sentence when the plan groups by length and the data are not among them, or have no length.
    """
    if not grouped(plan):
        return dict(keywords)
    author, dataset = plan.author("dataloader", "sampler"), keywords.get("dataset")
    if dataset is None:
        raise ValueError(
            f"{author} orders the rows by their lengths and has to see them: write "
            "DataLoader(**dataloader_keywords(plan, dataset=rows, shuffle=True, ...))."
        )
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"{author} needs data of a known length, and {type(dataset).__name__} has none: leave it out.")
    kept = {key: value for key, value in keywords.items() if key not in ("shuffle", "sampler")}
    return kept | {"sampler": _by_length(plan, dataset, kept.get("batch_size") or 1)}


def _by_length(plan: Plan, dataset: Any, batch_size: int) -> Any:
    """Build the sampler as Trainer does (trainer.py, `_get_train_sampler`), one group per update."""
    import torch
    from transformers import TrainingArguments
    from transformers.trainer_pt_utils import LengthGroupedSampler

    steps = plan["accelerator"].get("gradient_accumulation_steps", 1)
    # A generator of its own: each process orders all rows and takes its share, so all must draw the same numbers,
    # and accelerate leaves a sampler that it does not know as it is.
    generator = torch.Generator().manual_seed(plan["loop"].get("seed", TrainingArguments.seed))
    lengths = list(dataset["length"]) if "length" in getattr(dataset, "column_names", ()) else None
    return LengthGroupedSampler(batch_size * steps, dataset=dataset, lengths=lengths, generator=generator)

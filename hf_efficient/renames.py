"""Names that the Hugging Face stack has changed: one table, for whoever has to explain or rewrite them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Rename(NamedTuple):
    """An old name, the name to use instead (empty: nothing), the release that drops it, and how the value changes."""

    old: str
    new: str
    since: str
    value: str = ""
    works: bool = False
    """Is the old name still taken, with a warning?"""


_FIELDS = (
    Rename("evaluation_strategy", "eval_strategy", "transformers 5"),
    Rename("no_cuda", "use_cpu", "transformers 5"),
    Rename("use_mps_device", "", "transformers 5", "an mps device is found by itself"),
    Rename("fp16_backend", "", "transformers 5", "there is one backend"),
    Rename("half_precision_backend", "", "transformers 5", "there is one backend"),
    Rename("fp16_opt_level", "", "transformers 5", "it was apex's; fp16=True is all there is"),
    Rename("group_by_length", "train_sampling_strategy", "transformers 5", "True becomes 'group_by_length'"),
    Rename("warmup_ratio", "warmup_steps", "transformers 5", "a fraction below 1 is accepted there"),
    Rename("logging_dir", "", "transformers 5", "the tracker's own setting takes its place"),
    Rename("per_gpu_train_batch_size", "per_device_train_batch_size", "transformers 5"),
    Rename("per_gpu_eval_batch_size", "per_device_eval_batch_size", "transformers 5"),
    Rename("overwrite_output_dir", "", "transformers 5", "it is what happens"),
    Rename("adafactor", "optim", "transformers 5", "True becomes 'adafactor'"),
    Rename("torchdynamo", "torch_compile_backend", "transformers 5"),
    Rename("include_tokens_per_second", "include_num_input_tokens_seen", "transformers 5", "True becomes 'all'"),
    Rename("save_safetensors", "", "transformers 5", "safetensors is the only format"),
    Rename("dispatch_batches", "accelerator_config", "transformers 5", "becomes {'dispatch_batches': ...}"),
    Rename("split_batches", "accelerator_config", "transformers 5", "becomes {'split_batches': ...}"),
    Rename("fsdp_min_num_params", "fsdp_config", "transformers 5", "becomes {'min_num_params': ...}"),
    Rename("push_to_hub_model_id", "hub_model_id", "transformers 5"),
    Rename("gradient_checkpointing", "activation_checkpointing", "transformers 6", works=True),
    Rename("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "transformers 6", works=True),
)

_OPTIMIZERS = (
    Rename("adamw_hf", "adamw_torch_fused", "transformers 5", "other epsilon placement: torch's AdamW"),
    Rename("adamw_apex_fused", "adamw_torch_fused", "transformers 5", "torch has its own fused kernel"),
)

FIELDS = {rename.old: rename for rename in _FIELDS}
"""Renamed fields of TrainingArguments."""
OPTIMIZERS = {rename.old: rename for rename in _OPTIMIZERS}
"""Renamed values of `optim`."""


def modern(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of TrainingArguments with those old names that still work replaced by the new ones.

    transformers ignores the old name where the new one is set, so both together would lose a value without a word.
    """
    return {
        FIELDS[name].new if name in FIELDS and FIELDS[name].works else name: value for name, value in fields.items()
    }


def explain(name: str, table: Mapping[str, Rename] = FIELDS) -> str:
    """Say what became of a name (of a field, unless another table is given), or nothing where it never changed."""
    rename = table.get(name)
    if rename is None:
        return ""
    instead = f"use {rename.new}" if rename.new else "leave it out"
    return f"{name} is gone since {rename.since}: {instead}{f' ({rename.value})' if rename.value else ''}."

"""Names that the Hugging Face stack has changed: one table, for whoever has to explain or rewrite them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Rename(NamedTuple):
    """An old name, the name to use instead (empty: nothing), the release that drops it, and how the value changes."""

    old: str
    new: str
    since: str
    value: str = ""
    works: bool = False
    """Is the old name still taken, with a warning?"""
    becomes: Callable[[Any], Any] | None = None
    """Turns the old value into the new one, or into None where it is to be left out; without it the value stays."""
    known: str = ""
    """The release that brought the new name, where it did not bring it together with an end of the old one."""

    def instead(self, value: Any) -> tuple[str, Any] | None:
        """Return the new name and its value for an old value, or None where nothing is to be written."""
        new = self.becomes(value) if self.becomes else value
        return (self.new, new) if self.new and new is not None else None


def _if_true(new: Any) -> Callable[[Any], Any]:
    return lambda value: new if value is True else None


def _below(key: str, *, listed: bool = False) -> Callable[[Any], Any]:
    return lambda value: None if value is None else {key: [value] if listed and isinstance(value, str) else value}


_FIELDS = (
    Rename("evaluation_strategy", "eval_strategy", "transformers 5"),
    Rename(
        "evaluate_during_training", "eval_strategy", "transformers 5", "True becomes 'steps'", becomes=_if_true("steps")
    ),
    Rename("no_cuda", "use_cpu", "transformers 5"),
    Rename("use_mps_device", "", "transformers 5", "an mps device is found by itself"),
    Rename("fp16_backend", "", "transformers 5", "there is one backend"),
    Rename("half_precision_backend", "", "transformers 5", "there is one backend"),
    Rename("fp16_opt_level", "", "transformers 5", "it was apex's; fp16=True is all there is"),
    Rename(
        "group_by_length", "train_sampling_strategy", "transformers 5.2", "True becomes 'group_by_length'",
        becomes=_if_true("group_by_length"),
    ),
    Rename("warmup_ratio", "warmup_steps", "transformers 5.15", "a fraction below 1 is a share there, 1.0 one step"),
    Rename("logging_dir", "", "transformers 5.15", "the tracker's own setting: TENSORBOARD_LOGGING_DIR"),
    Rename("per_gpu_train_batch_size", "per_device_train_batch_size", "transformers 5"),
    Rename("per_gpu_eval_batch_size", "per_device_eval_batch_size", "transformers 5"),
    Rename("overwrite_output_dir", "", "transformers 5", "it is what happens"),
    Rename("adafactor", "optim", "transformers 5", "True becomes 'adafactor'", becomes=_if_true("adafactor")),
    Rename("torchdynamo", "torch_compile_backend", "transformers 5"),
    Rename("torch_compile_options", "", "transformers 5", "torch_compile_mode chooses among torch's sets"),
    Rename(
        "include_tokens_per_second", "include_num_input_tokens_seen", "transformers 5", "True becomes 'all'",
        becomes=_if_true("all"),
    ),
    Rename(
        "include_inputs_for_metrics", "include_for_metrics", "transformers 5", "True becomes ['inputs']",
        becomes=_if_true(["inputs"]),
    ),
    Rename("save_safetensors", "", "transformers 5", "safetensors is the only format"),
    Rename(
        "dispatch_batches", "accelerator_config", "transformers 5", "becomes {'dispatch_batches': ...}",
        becomes=_below("dispatch_batches"),
    ),
    Rename(
        "split_batches", "accelerator_config", "transformers 5", "becomes {'split_batches': ...}",
        becomes=_below("split_batches"),
    ),
    Rename(
        "fsdp_min_num_params", "fsdp_config", "transformers 5", "becomes {'min_num_params': ...}",
        becomes=_below("min_num_params"),
    ),
    Rename(
        "fsdp_transformer_layer_cls_to_wrap", "fsdp_config", "transformers 5",
        "becomes {'transformer_layer_cls_to_wrap': [...]}",
        becomes=_below("transformer_layer_cls_to_wrap", listed=True),
    ),
    Rename("sharded_ddp", "fsdp", "transformers 5", "it was fairscale's; True shards fully", becomes=_if_true(True)),
    Rename("xpu_backend", "ddp_backend", "transformers 5"),
    Rename("use_ipex", "", "transformers 5", "torch has what it added"),
    Rename("push_to_hub_model_id", "hub_model_id", "transformers 5"),
    Rename("push_to_hub_organization", "hub_model_id", "transformers 5", "'organization/name'", becomes=lambda _: None),
    Rename("push_to_hub_token", "hub_token", "transformers 5"),
    Rename("jit_mode_eval", "", "transformers 5", "torch_compile took the place of tracing"),
    Rename("past_index", "", "transformers 5", "no model of today hands over its past"),
    Rename("mp_parameters", "", "transformers 5", "it was SageMaker's"),
    Rename("ray_scope", "", "transformers 5", "scope is an argument of hyperparameter_search"),
    Rename("tpu_num_cores", "", "transformers 5", "the launcher says it"),
    Rename(
        "tpu_metrics_debug", "debug", "transformers 5", "True becomes 'tpu_metrics_debug'",
        becomes=_if_true("tpu_metrics_debug"),
    ),
    Rename("use_legacy_prediction_loop", "", "transformers 5", "there is one loop"),
    Rename("gradient_checkpointing", "activation_checkpointing", "transformers 6", works=True, known="5.23"),
    Rename(
        "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "transformers 6", works=True, known="5.23"
    ),
)  # fmt: skip

_SFT = (
    Rename("max_seq_length", "max_length", "trl 0.20"),
    Rename("use_liger", "use_liger_kernel", "trl 0.20"),
    Rename("dataset_batch_size", "", "trl 0.20", "rows are packed in one pass"),
    Rename("num_of_sequences", "", "trl 0.20", "max_length alone says how long a packed row is"),
    Rename("chars_per_token", "", "trl 0.20", "rows are tokenized before they are packed"),
)

_TRL_MODEL = (
    Rename("torch_dtype", "dtype", "trl 1"),
    Rename(
        "use_flash_attention_2", "attn_implementation", "trl 0.12", "True becomes 'flash_attention_2'",
        becomes=_if_true("flash_attention_2"),
    ),
)  # fmt: skip

_OPTIMIZERS = (
    Rename("adamw_hf", "adamw_torch_fused", "transformers 5", "other epsilon placement: torch's AdamW"),
    Rename("adamw_apex_fused", "adamw_torch_fused", "transformers 5.8", "torch has its own fused kernel"),
)

_CALL = "transformers 5", "trl 0.20"
_TRAINERS = (
    Rename("tokenizer", "processing_class", _CALL[0]),
    *(
        Rename(name, new, _CALL[1], "it is a field of SFTConfig")
        for name, new in (
            ("max_seq_length", "max_length"), ("dataset_text_field", "dataset_text_field"), ("packing", "packing"),
            ("eval_packing", "eval_packing"), ("dataset_kwargs", "dataset_kwargs"),
            ("dataset_num_proc", "dataset_num_proc"),
            ("model_init_kwargs", "model_init_kwargs"), ("neftune_noise_alpha", "neftune_noise_alpha"),
            ("dataset_batch_size", ""), ("num_of_sequences", ""), ("chars_per_token", ""), ("infinite", ""),
        )
    ),
)  # fmt: skip

_LOADING = (
    Rename("torch_dtype", "dtype", "transformers 6", works=True, known="4.56"),
    Rename(
        "load_in_4bit", "quantization_config", "transformers 5", "True becomes BitsAndBytesConfig(load_in_4bit=True)"
    ),
    Rename(
        "load_in_8bit", "quantization_config", "transformers 5", "True becomes BitsAndBytesConfig(load_in_8bit=True)"
    ),
    Rename(
        "use_flash_attention_2",
        "attn_implementation",
        "transformers 5",
        "True becomes 'flash_attention_2'",
        becomes=_if_true("flash_attention_2"),
    ),
    Rename("use_auth_token", "token", "transformers 5"),
    Rename("resume_download", "", "transformers 5", "downloads are resumed by themselves"),
)

_DATALOADER = "dataloader_config=DataLoaderConfiguration({}=...)"
_ACCELERATOR = (
    *(
        Rename(name, _DATALOADER.format(name), "accelerate 1")
        for name in ("dispatch_batches", "even_batches", "use_seedable_sampler")
    ),
    Rename("logging_dir", "project_dir", "accelerate 1"),
    Rename("fp16", "mixed_precision", "accelerate 1", "True becomes 'fp16'"),
)

FIELDS = {rename.old: rename for rename in _FIELDS}
"""Renamed fields of TrainingArguments."""
SFT = {rename.old: rename for rename in _SFT}
"""Renamed fields of SFTConfig, besides those of TrainingArguments."""
TRL_MODEL = {rename.old: rename for rename in _TRL_MODEL}
"""Renamed arguments of TRL's ModelConfig, which its command line and TrlParser take."""
OPTIMIZERS = {rename.old: rename for rename in _OPTIMIZERS}
"""Renamed values of `optim`."""
TRAINERS = {rename.old: rename for rename in _TRAINERS}
"""Renamed keywords of Trainer(...) and of TRL's trainers."""
LOADING = {rename.old: rename for rename in _LOADING}
"""Renamed keywords of a model's from_pretrained(...)."""
ACCELERATOR = {rename.old: rename for rename in _ACCELERATOR}
"""Renamed keywords of Accelerator(...)."""


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

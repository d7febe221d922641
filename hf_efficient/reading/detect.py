"""What kind of file a mapping is: by how many of its keys each kind knows, also where some are misspelled."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from hf_efficient.reading.document import KEYS
from hf_efficient.reading.installed import fields, trainer_fields
from hf_efficient.reading.parts import Kind
from hf_efficient.reading.setup import SUBJECTS
from hf_efficient.renames import FIELDS

DEEPSPEED_BLOCKS = frozenset({
    "zero_optimization", "fp16", "bf16", "bfloat16", "amp", "torch_autocast", "optimizer", "scheduler", "data_types",
    "aio", "activation_checkpointing", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet",
    "comms_logger", "checkpoint", "sparse_attention", "data_efficiency", "curriculum_learning",
    "compression_training", "elasticity", "autotuning", "pipeline", "tensor_parallel", "nebula", "hybrid_engine",
    "progressive_layer_drop", "eigenvalue", "compile", "zenflow",
})  # fmt: skip
DEEPSPEED_KEYS = DEEPSPEED_BLOCKS | {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "prescale_gradients", "gradient_predivide_factor", "sparse_gradients", "communication_data_type",
    "seq_parallel_communication_data_type", "memory_breakdown", "dump_state", "disable_allgather",
    "dataloader_drop_last", "graph_harvesting", "seed", "gradient_allreduce_op", "managed_gradient_accumulation",
}  # fmt: skip
LAUNCH_MORE = {"fp16", "dynamo_backend", "deepspeed_config", "fsdp_config", "tpu_vm", "num_cpu_threads_per_process"}
CONFIG_KEYS = frozenset({
    "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings",
    "hidden_act", "initializer_range", "rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache",
    "text_config", "vision_config", "audio_config", "thinker_config", "quantization_config", "auto_map",
    "_name_or_path", "attention_dropout", "n_embd", "n_layer", "n_head", "n_positions", "d_model", "d_ff",
    "num_layers", "head_dim", "sliding_window", "attention_bias", "is_encoder_decoder", "id2label", "label2id",
    "layer_types",
})  # fmt: skip
SURE_SETUP = frozenset({"trainer", "sft", "accelerator", "launch", "machine", "dataloader", "peft"})
STRANGERS: Mapping[str, tuple[str, ...]] = {
    "is the state of a Trainer": ("log_history", "global_step"),
    "is an adapter's configuration": ("peft_type",),
    "is an index of weights": ("weight_map",),
    "is a tokenizer's configuration": ("tokenizer_class",),
    "is a tokenizer": ("added_tokens", "pre_tokenizer"),
    "is a notebook": ("cells", "nbformat"),
    "is an Axolotl configuration": ("base_model", "micro_batch_size"),
    "is a LLaMA-Factory configuration": ("finetuning_type", "stage"),
    "is a torchtune configuration": ("tokenizer", "loss", "optimizer"),
    "is an AutoTrain configuration": ("task", "base_model", "backend"),
    "is a sweep of Weights & Biases": ("method", "parameters"),
    "is an environment of conda": ("channels", "dependencies"),
    "is a list of pre-commit hooks": ("repos",),
    "is a preprocessor's configuration": ("image_processor_type",),
    "is a processor's configuration": ("processor_class",),
    "is a feature extractor's configuration": ("feature_extractor_type",),
    "is a continuous-integration workflow": ("jobs", "True"),
    "is a description of services": ("services",),
    "is a Kubernetes object": ("apiVersion",),
}
OWN = frozenset({"lr", "batch_size", "epochs", "num_epochs", "max_epochs"})
"""Names that people give to arguments of their own scripts, and transformers to none."""
TELLING = ("per_device_", "num_train_epochs", "gradient_accumulation_steps", "train_batch_size")
CLOSE = 0.8
ENOUGH = 0.3
"""Of the keys of a file, this part at least must be known, or three keys."""


@cache
def vocabularies() -> Mapping[Kind, frozenset[str]]:
    """Return the top-level keys that each kind of mapping knows."""
    arguments = set(trainer_fields(sft=True)) | set(FIELDS)
    arguments |= set(fields("trl", "trainer/model_config.py", "ModelConfig"))
    arguments |= set(fields("trl", "scripts/utils.py", "ScriptArguments"))
    launch = set(LAUNCH_MORE)
    for name in ("BaseConfig", "ClusterConfig", "SageMakerConfig"):
        launch |= set(fields("accelerate", "commands/config/config_args.py", name))
    return {
        "setup": frozenset(KEYS),
        "launch": frozenset(launch),
        "deepspeed": frozenset(DEEPSPEED_KEYS),
        "config": CONFIG_KEYS,
        "arguments": frozenset(arguments),
    }


def kind_of(mapping: Mapping[str, Any], name: str = "") -> Kind | str:
    """Return the kind of a mapping; a sentence's end (`is a tokenizer`) for what is none of the doctor's.

    `name`, the file's, breaks ties only.
    """
    for told, signs in STRANGERS.items():
        if all(sign in mapping for sign in signs) and not ("model_type" in mapping and "architectures" in mapping):
            return told
    if _is_setup(mapping):
        return "setup"
    if isinstance(mapping.get("model_type"), str) and not ({"learning_rate", "output_dir"} & set(mapping)):
        return "config"
    kinds = [kind for kind in vocabularies() if kind != "setup"]
    points = {kind: sum(_point(kind, key, value) for key, value in mapping.items()) for kind in kinds}
    if "generation" in name and points["config"]:
        return "is a generation configuration"
    hints = {
        "launch": ("accel", "launch", "fsdp"),
        "deepspeed": ("ds_", "deepspeed", "zero"),
        "config": ("config.json",),
    }
    best = max(points, key=lambda kind: (points[kind], any(hint in name for hint in hints.get(kind, ()))))
    known = sum(1 for key in mapping if _point(best, key, mapping[key]))
    sure = any(key in vocabularies()[best] for key in mapping)
    own = best == "arguments" and OWN & set(mapping) and not any(key.startswith(TELLING) for key in mapping)
    return best if sure and not own and (known >= ENOUGH * len(mapping) or known >= 3) else "was not recognised"


def _is_setup(mapping: Mapping[str, Any]) -> bool:
    """Are all keys those of a setup document, or most of them and some that nothing else has?"""
    if not all(_is_huggings(mapping.get(key)) for key in ("trainer", "sft")):
        return False
    known = [key for key, value in mapping.items() if key in KEYS and _fits_setup(key, value)]
    close = [key for key in mapping if key not in KEYS and near(key, "setup")]
    if not known or any(key in DEEPSPEED_KEYS and key not in KEYS for key in mapping):
        return False
    sure = any(key in SURE_SETUP for key in known)
    return len(known) + len(close) == len(mapping) or (sure and 2 * len(known) >= len(mapping))


def _is_huggings(value: Any) -> bool:
    """May what stands under `trainer` be training arguments, and not another library's Trainer?"""
    if not isinstance(value, Mapping) or not value:
        return True
    known = [key for key in value if key in vocabularies()["arguments"] or near(str(key), "arguments")]
    return 2 * len(known) >= len(value)


def _fits_setup(key: str, value: Any) -> bool:
    if key not in SUBJECTS:
        return not isinstance(value, Mapping | list)
    ours = not isinstance(value, Mapping) or "type" not in value or "class" in value
    return isinstance(value, Mapping | None) and (ours or key not in ("optimizer", "scheduler"))


def _point(kind: Kind, key: str, value: Any) -> float:
    """Return what a key says for a kind: one point shared by the kinds that know it, half of it for a near miss."""
    if kind == "deepspeed" and key in DEEPSPEED_BLOCKS and not isinstance(value, Mapping):
        return 0.0
    if kind != "deepspeed" and key in ("fp16", "bf16") and isinstance(value, Mapping):
        return 0.0
    knowing = [other for other, words in vocabularies().items() if key in words and other != "setup"]
    if kind in knowing:
        return 1 / len(knowing)
    return 0.4 if not knowing and near(key, kind) else 0.0


def near(key: str, kind: Kind) -> str:
    """Return the key that a kind knows and that is spelled almost like this one, or an empty string."""
    if not (3 if kind == "setup" else 6) < len(key) < 60:
        return ""
    close = get_close_matches(key.lower(), vocabularies()[kind], n=1, cutoff=0.75 if kind == "setup" else CLOSE)
    return close[0] if close else ""

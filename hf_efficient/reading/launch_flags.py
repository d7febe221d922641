"""What the launchers' own options mean: which take a value, and which key of the accelerate YAML each one is."""

from __future__ import annotations

from typing import Any

from hf_efficient.finding import Place
from hf_efficient.reading.arguments import literal
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.shell import Word

BARE: dict[str, frozenset[str]] = {
    "accelerate": frozenset({
        "h", "help", "m", "module", "q", "quiet", "cpu", "multi_gpu", "tpu", "enable_cpu_affinity",
        "dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp",
        "use_parallelism_config", "use_megatron_lm", "same_network", "no_python", "tpu_cluster", "no_tpu_cluster",
        "tpu_use_sudo", "downcast_bf16", "fp8_use_autocast_during_eval", "debug", "fp16", "ipex", "use_xpu",
        "use_mps_device",
    }),
    "torchrun": frozenset({
        "h", "help", "m", "module", "standalone", "no_python", "run_path", "virtual_local_rank", "use_env", "legacy",
    }),
    "deepspeed": frozenset({
        "h", "help", "module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid",
        "quiet", "bind_cores_to_rank", "elastic_training",
    }),
    "python": frozenset({"u", "O", "OO", "B", "I", "s", "S", "E", "i", "v", "q", "d", "b", "P"}),
}  # fmt: skip
"""Options that take no value."""
ENGINES = {
    "multi_gpu": "MULTI_GPU", "tpu": "XLA", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
}  # fmt: skip
DEEPSPEED = frozenset({
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
})  # fmt: skip
BLOCKS = {
    "fsdp_": "fsdp_config", "dynamo_": "dynamo_config", "fp8_": "fp8_config", "megatron_lm_": "megatron_lm_config",
    "parallelism_config_": "parallelism_config", "mpirun_": "mpirun_config",
}  # fmt: skip
PLAIN = frozenset({
    "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend",
    "same_network", "main_training_function", "mixed_precision", "gpu_ids", "downcast_bf16", "enable_cpu_affinity",
    "debug",
})  # fmt: skip
NEEDS = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP"}
"""Blocks that accelerate listens to under their engine only."""
TEXTS = frozenset({"gpu_ids", "mixed_precision", "main_process_ip"})
Option = tuple[Word, Word | None]


def key_of(name: str) -> str:
    """Return the dotted key of the accelerate YAML that an option is, or an empty string."""
    if name in DEEPSPEED:
        return f"deepspeed_config.{name}"
    block = next((block for prefix, block in BLOCKS.items() if name.startswith(prefix)), "")
    return f"{block}.{name}" if block else name if name in PLAIN else ""


def launch_settings(options: dict[str, Option], place: Place, *, whole: bool) -> tuple[Settings, tuple[str, ...]]:
    """Return the keys of the accelerate YAML that options say, and those options that nothing listens to.

    `whole`: no YAML stands behind them, so that DeepSpeed's and FSDP's need their engine among them.
    """
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    idle: list[str] = []
    engine = next((engine for flag, engine in ENGINES.items() if flag in options), "")
    for name, (option, word) in options.items():
        at = Place(place.file, option.line)
        if name in ENGINES or name == "cpu":
            key, value = ("use_cpu", True) if name == "cpu" else ("distributed_type", ENGINES[name])
        else:
            key, value = key_of(name), True if word is None else _typed(name, word)
        block, _, inner = key.partition(".")
        if (engine or whole) and block in NEEDS and engine != NEEDS[block]:
            idle.append(option.text.partition("=")[0])
        elif inner and not (name == "dynamo_backend" and str(value).lower() == "no"):
            values.setdefault(block, {})[inner] = value
            places.setdefault(block, at)
        elif key and not inner:
            values[key] = value
        places[key] = at
    return Settings(values, place=place, places=places), tuple(idle)


def _typed(name: str, word: Word) -> Any:
    return word.text if name in TEXTS and word.known else literal(word)

"""Keys of the accelerate YAML that accelerate refuses, or that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.installed import fields
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import listed, nearest

TYPES = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "DEEPSPEED",
    "FSDP", "XLA", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON", "TP",
)  # fmt: skip
PRECISIONS = ("no", "fp16", "bf16", "fp8")
BACKENDS = (
    "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT",
    "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND", "NEURON",
)  # fmt: skip
CONFIG = "commands/config/config_args.py"


def _known() -> frozenset[str]:
    """Return the keys that the installed accelerate takes at the top of its YAML; empty where it cannot be read."""
    found = {**fields("accelerate", CONFIG, "ClusterConfig"), **fields("accelerate", CONFIG, "BaseConfig")}
    return frozenset((*found, "fp16", "dynamo_backend")) if found else frozenset()


def _sagemaker(launch: Settings) -> bool:
    return launch.text("compute_environment") == "AMAZON_SAGEMAKER"


@check({"accelerate": ">=1.0"})
def launch_unknown_key(launch: Settings) -> Iterator[Finding]:
    """Find a key at the top of the accelerate YAML that accelerate does not know.

    accelerate launch refuses the file ("had unknown keys", from_yaml_file in
    accelerate/commands/config/config_args.py). Options of the command line such as zero_stage or fsdp_version stand
    inside deepspeed_config and fsdp_config there.
    """
    known = _known()
    for key in launch if known and not _sagemaker(launch) else ():
        if key in known:
            continue
        block = "fsdp_config" if key.startswith("fsdp_") else "deepspeed_config" if key in _ZERO else ""
        close = nearest(key, known)
        alike = bool(close) and close[:1] == key[:1]  # ipex_config is none of the other words that end in _config
        remedy = f"Move it into {block}." if block else f"Did you mean {close}?" if alike else "Remove it."
        yield error(
            f"{key} is an unknown key of the accelerate YAML",
            why="accelerate launch refuses a file with keys that it does not know.",
            fix=remedy,
            at=launch.where(key),
        )


_ZERO = (
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device",
    "offload_param_device", "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_config_file",
)  # fmt: skip


@check({"accelerate": ">=1.0"})
def launch_unknown_word(launch: Settings) -> Iterator[Finding]:
    """Find a distributed_type, mixed_precision or dynamo_backend that accelerate does not know.

    Each is a fixed list of words (DistributedType, PrecisionType, DynamoBackend); any other raises ValueError. YAML
    reads a bare `no` as false: `mixed_precision: no` without quotes makes accelerate launch fail with an
    AttributeError.
    """
    if _sagemaker(launch):
        return
    dynamo = "dynamo_config.dynamo_backend" if launch.said("dynamo_config.dynamo_backend") else "dynamo_backend"
    for key, words in (("distributed_type", TYPES), ("mixed_precision", PRECISIONS), (dynamo, BACKENDS)):
        value = launch.get(key)
        if isinstance(value, str):
            found = value.lower() if key == "mixed_precision" else value.upper() if "dynamo" in key else value
            wrong = found not in words and value != ""
        else:
            wrong = value is False and key == "mixed_precision"
        if wrong:
            close = "no" if value is False else SPELLED.get(_bare(value)) or nearest(str(value), words)
            right = f"'{close}'" if close in ("no", "NO") else close
            yield error(
                f"{key} is {value!r} in the accelerate YAML",
                why=f"accelerate takes {listed(words, 'or')} there and fails on anything else.",
                fix=f"Write {key}: {right or words[0]}" + (", in quotes." if value is False else "."),
                at=launch.where(key),
            )


def _bare(value: object) -> str:
    return str(value).lower().removeprefix("torch.")


SPELLED = {
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "no", "fp32": "no", "none": "no", "tpu": "XLA",
}  # fmt: skip
"""Words of other releases and other libraries."""


@check({"accelerate": ">=1.0"})
def launch_file_incomplete(setup: Setup, launch: Settings) -> Iterator[Finding]:
    """Find an accelerate YAML without distributed_type, or without processes that nobody else gives.

    accelerate raises ValueError for a file without distributed_type; num_processes left out counts as -1, which wants
    --num_processes on the command line. Asked only of files that name their compute_environment.
    """
    if not launch.said("compute_environment") or _sagemaker(launch) or launch.open:
        return
    if not launch.said("distributed_type"):
        yield error(
            "the accelerate YAML has no distributed_type",
            why="accelerate launch raises ValueError: it must be specified in the file.",
            fix="Write distributed_type: MULTI_GPU, DEEPSPEED, FSDP or 'NO'.",
            at=launch.place,
        )
    elif not launch.said("num_processes") and setup.processes is None and launch.get("distributed_type") != "NO":
        yield warning(
            "the accelerate YAML has no num_processes",
            why="accelerate launch raises ValueError unless --num_processes stands on the command line.",
            fix="Write num_processes: the number of GPUs of all machines together.",
            at=launch.place,
        )


@check({"accelerate": ">=1.0"})
def launch_type_against_processes(launch: Settings) -> Iterator[Finding]:
    """Tell that distributed_type and num_processes say different things.

    With 'NO' accelerate starts one process, whatever num_processes says; MULTI_GPU with one process is DDP of one.
    """
    kind, count = launch.get("distributed_type"), launch.number("num_processes")
    alone = kind is False or kind == "NO"
    if count is UNKNOWN or not ((alone and count > 1) or (kind == "MULTI_GPU" and count == 1)):
        return
    yield info(
        f"distributed_type {'NO' if alone else kind} with num_processes {count}",
        why="accelerate starts one process." if alone else "DDP of one process gives nothing and costs buckets.",
        fix="Write distributed_type: MULTI_GPU for several processes." if alone else "Write distributed_type: 'NO'.",
        at=launch.where("distributed_type"),
    )


@check({"accelerate": ">=1.0"})
def launch_gpu_ids(launch: Settings) -> Iterator[Finding]:
    """Find gpu_ids that do not go with the processes.

    accelerate splits gpu_ids at commas: a number without quotes has no split and fails; one id with several processes
    is refused for MULTI_GPU ("Less than two GPU ids were configured").
    """
    ids, count = launch.get("gpu_ids"), launch.number("num_processes")
    if isinstance(ids, int) and not isinstance(ids, bool):
        yield error(
            f"gpu_ids is the number {ids}",
            why="accelerate splits it as a string and fails with an AttributeError.",
            fix=f"Write gpu_ids: '{ids}' in quotes, or gpu_ids: all.",
            at=launch.where("gpu_ids"),
        )
    elif isinstance(ids, str) and ids != "all" and ids:
        named = [part for part in ids.split(",") if part.strip()]
        kind, machines = launch.get("distributed_type"), launch.get("num_machines", 1)
        short = count > len(named) or (len(named) < 2 and kind == "MULTI_GPU")
        if short and machines == 1:
            yield error(
                f"gpu_ids {ids} names {len(named)} GPU{'s' if len(named) != 1 else ''}"
                + (f" for {count} processes" if count is not UNKNOWN else ""),
                why="Each process takes one of the named GPUs; MULTI_GPU wants at least two, and a rank without"
                " one fails.",
                fix="Name one id per process in gpu_ids, write gpu_ids: all, or lower num_processes.",
                at=launch.where("gpu_ids"),
            )


@check({"accelerate": ">=1.0"})
def launch_several_machines(launch: Settings) -> Iterator[Finding]:
    """Find several machines without an address, a rank, or whole processes per machine.

    Every machine runs the same command with its own machine_rank (0 by default), and meets the others at
    main_process_ip:main_process_port. num_processes counts the processes of all machines: each starts
    num_processes // num_machines (prepare_multi_gpu_env). A file that names neither address nor rank leaves both to
    the command line, which is no mistake of the file.
    """
    machines, count = launch.number("num_machines"), launch.number("num_processes")
    if machines is UNKNOWN or machines < 2 or launch.open:
        return
    zero = launch.get("distributed_type") == "DEEPSPEED"
    direct = not zero or launch.text("deepspeed_config.deepspeed_multinode_launcher") == "standard"
    named = launch.said("main_process_ip") and launch.get("main_process_ip") is not None
    for_all = launch.said("compute_environment") and not launch.said("machine_rank")
    if not named and launch.text("rdzv_backend") in ("", "static") and direct:
        level = info if for_all else warning
        yield level(
            f"num_machines {machines} without main_process_ip",
            why="The machines do not find each other: accelerate uses the address None, or asserts.",
            fix="Write main_process_ip and main_process_port of the machine of rank 0 (or pass --main_process_ip).",
            at=launch.where("num_machines"),
        )
    if not launch.said("machine_rank"):
        yield info(
            f"num_machines {machines} without machine_rank",
            why="Every machine would call itself rank 0 and wait.",
            fix="Give each machine its own --machine_rank, from 0 on.",
            at=launch.where("num_machines"),
        )
    if count is not UNKNOWN and count % machines != 0:
        yield error(
            f"num_processes {count} on num_machines {machines}",
            why=f"num_processes counts all machines: each starts {count} // {machines} = {count // machines} of them.",
            fix=f"Write num_processes as GPUs per machine x {machines}.",
            at=launch.where("num_processes"),
        )


@check({"accelerate": ">=1.0", "transformers": ">=4.46"})
def launch_dynamo_beside_torch_compile(launch: Settings, trainer: Settings = NOTHING) -> Iterator[Finding]:
    """Tell that both the accelerate YAML and the arguments ask for compilation.

    TrainingArguments write the environment variables of accelerate's dynamo plugin over what the launcher wrote.
    """
    backend = _dynamo(launch)
    if backend and trainer.on("torch_compile"):
        yield info(
            f"dynamo_backend {backend} in the accelerate YAML and torch_compile=True in the arguments",
            why="The arguments set the launcher's variables anew: theirs are in force.",
            fix="Say it in one place: remove dynamo_config from the YAML.",
            at=launch.where("dynamo_config"),
        )


def _dynamo(launch: Settings) -> Any:
    part = launch.get("dynamo_config")
    value = part.get("dynamo_backend") if isinstance(part, Mapping) else launch.get("dynamo_backend")
    return value if isinstance(value, str) and value.upper() != "NO" else ""

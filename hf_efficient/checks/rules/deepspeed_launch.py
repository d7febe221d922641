"""DeepSpeed in the accelerate YAML, and how a run under DeepSpeed is started."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import TOP, YAML_READ, YAML_REFUSED, ZERO
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import listed, nearest

FILE = "deepspeed_config.deepspeed_config_file"


@check({"accelerate": ">=1.0"})
def launch_deepspeed_unknown_key(launch: Settings) -> Iterator[Finding]:
    """Find keys of deepspeed_config in the accelerate YAML that accelerate does not read.

    accelerate copies every key of the block to its arguments and reads the few that it knows
    (prepare_deepspeed_cmd_env); any other is ignored without a word. Keys of DeepSpeed itself belong into a DeepSpeed
    JSON that deepspeed_config_file names.
    """
    part = launch.part("deepspeed_config")
    for key in part:
        if key in YAML_READ:
            continue
        close = nearest(key, YAML_READ)
        if key in TOP:
            remedy = f"Write {key} at the top of a DeepSpeed JSON, and name that by deepspeed_config_file."
        elif key in ZERO:
            remedy = f"Write {key} into zero_optimization of a DeepSpeed JSON, and name that by deepspeed_config_file."
        else:
            remedy = f"Did you mean {close}? Otherwise remove it." if close else "Remove it."
        yield warning(
            f"deepspeed_config.{key} is an unknown key of the accelerate YAML",
            why="accelerate does not read it: it is ignored in silence.",
            fix=remedy,
            at=launch.where(f"deepspeed_config.{key}"),
        )


@check({"accelerate": ">=1.0", "transformers": ">=4.46"})
def launch_keys_beside_deepspeed_argument(launch: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find ZeRO keys or a precision in the accelerate YAML beside TrainingArguments(deepspeed=...).

    TrainingArguments make a DeepSpeedPlugin of their JSON, and that raises ValueError (_deepspeed_config_checks) where
    the launcher has handed over stage, offload, accumulation, clipping, zero3_save_16bit_model or mixed_precision of
    the YAML: the launcher lists them in ACCELERATE_CONFIG_DS_FIELDS. All of that belongs into the JSON.
    """
    if launch.text("distributed_type") != "DEEPSPEED" or not trainer.on("deepspeed") or launch.said(FILE):
        return
    beside = [f"deepspeed_config.{key}" for key in YAML_REFUSED if launch.said(f"deepspeed_config.{key}")]
    beside += ["mixed_precision"] if launch.text("mixed_precision") and _in_yaml(launch, "mixed_precision") else []
    if beside:
        names = listed(path.rpartition(".")[2] for path in beside)
        yield error(
            f"{names} in the accelerate YAML, beside TrainingArguments(deepspeed=...)",
            why="accelerate raises ValueError: with a DeepSpeed JSON these keys are not taken from the YAML.",
            fix=f"Remove {names} from the YAML and say it in the JSON; or remove deepspeed= from the arguments.",
            at=launch.where(beside[0]),
        )


def _in_yaml(launch: Settings, key: str) -> bool:
    """Does the key stand in the file, and not on the command line, where it is taken?"""
    return launch.where(key).file == launch.where("distributed_type").file


@check({"accelerate": ">=1.0"}, seen="ran on CPU")
def deepspeed_without_zero_block(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find a DeepSpeed JSON without zero_optimization.

    accelerate, and transformers through it, raise ValueError ("Please specify the ZeRO optimization config"). DeepSpeed
    itself takes the file and trains with stage 0.
    """
    if deepspeed.said("zero_optimization") or deepspeed.open or door(setup) in ("deepspeed", ""):
        return
    yield error(
        "the DeepSpeed JSON has no zero_optimization",
        why="accelerate raises ValueError: it wants the ZeRO configuration in the file.",
        fix='Add "zero_optimization": {"stage": 2} (or 1, or 3; 0 switches ZeRO off).',
        at=deepspeed.place,
    )


@check({"accelerate": ">=1.0"})
def launch_deepspeed_not_chosen(launch: Settings) -> Iterator[Finding]:
    """Find a deepspeed_config in the accelerate YAML whose distributed_type is another.

    The block is read for distributed_type DEEPSPEED only: otherwise the run is plain DDP, FSDP or one process.
    """
    kind = launch.text("distributed_type")
    if kind in ("", "DEEPSPEED") or not launch.part("deepspeed_config").values or launch.on("use_deepspeed"):
        return
    yield warning(
        f"deepspeed_config beside distributed_type {kind}",
        why=f"accelerate reads deepspeed_config for distributed_type DEEPSPEED only; the run is {kind} without ZeRO.",
        fix="Write distributed_type: DEEPSPEED, or remove deepspeed_config.",
        at=launch.where("deepspeed_config"),
    )


@check({"accelerate": ">=1.0"})
def launch_zero3_init_below_stage_3(launch: Settings) -> Iterator[Finding]:
    """Find zero3_init_flag at a ZeRO stage below 3.

    DeepSpeedPlugin warns and sets it to False: only stage 3 shards the model while it is loaded.
    """
    stage = launch.number("deepspeed_config.zero_stage")
    flag = launch.get("deepspeed_config.zero3_init_flag")
    if stage < 3 and flag in (True, "true", "True"):
        yield info(
            f"zero3_init_flag with zero_stage {stage}",
            why="It acts at stage 3 only; accelerate sets it to false.",
            fix="Write zero3_init_flag: false, or zero_stage: 3.",
            at=launch.where("deepspeed_config.zero3_init_flag"),
        )


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"})
def zero_nvme_without_path(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find offload to nvme without a path that reaches DeepSpeed.

    DeepSpeed needs nvme_path beside the device and fails without. The accelerate YAML cannot give it: accelerate reads
    offload_optimizer_nvme_path and offload_param_nvme_path into its arguments but does not hand them to the processes
    (prepare_deepspeed_cmd_env sets no such variable), so that the path becomes the word "none".
    """
    for key in ("offload_optimizer", "offload_param"):
        if zero.text(key) != "nvme":
            continue
        if setup.deepspeed is not None:
            path = setup.deepspeed.get(f"zero_optimization.{key}.nvme_path")
            missing = path is None or path == ""
        else:
            missing = setup.launch is not None and setup.launch.said("deepspeed_config")
        if missing:
            yield error(
                f"{key} goes to nvme, and no nvme_path reaches DeepSpeed",
                why="DeepSpeed fails without the folder of the NVMe disk"
                + ("." if setup.deepspeed is not None else "; accelerate does not hand over the path of its YAML."),
                fix=f'Write "{key}": {{"device": "nvme", "nvme_path": "/local_nvme"}} in zero_optimization of a '
                "DeepSpeed JSON (deepspeed_config_file).",
                at=zero.where(key),
            )


@check({"transformers": ">=4.46", "accelerate": ">=1.0"})
def deepspeed_started_with_python(setup: Setup, trainer: Settings) -> Iterator[Finding]:
    """Find a Trainer with a DeepSpeed configuration that plain `python` starts.

    DeepSpeed needs the variables of a launcher (RANK, WORLD_SIZE, MASTER_ADDR); without them init_distributed fails,
    and at best one process trains. Silent where the script sets them itself.
    """
    script, env = setup.script, setup.env or NOTHING
    by_hand = "RANK" in env or (script is not None and "MASTER_ADDR" in script.source)
    if setup.launcher == "python" and trainer.on("deepspeed") and not by_hand:
        yield error(
            "TrainingArguments(deepspeed=...) started with plain python",
            why="DeepSpeed finds no RANK and no MASTER_ADDR in the environment and cannot set up its processes.",
            fix="Start it with `deepspeed train.py`, `torchrun --nproc_per_node N train.py` or `accelerate launch`.",
            at=trainer.where("deepspeed"),
        )


@check({"transformers": ">=4.46"})
def deepspeed_launcher_without_configuration(setup: Setup, trainer: Settings) -> Iterator[Finding]:
    """Find a Trainer that the `deepspeed` launcher starts without a DeepSpeed configuration.

    The launcher starts processes and nothing more: without TrainingArguments(deepspeed=...) they train as plain DDP,
    every process with the whole optimizer.
    """
    unsaid = not trainer.open and trainer.off("deepspeed") and setup.deepspeed is None and setup.zero is None
    if setup.launcher == "deepspeed" and unsaid:
        yield warning(
            "the deepspeed launcher, and no deepspeed= in TrainingArguments",
            why="The launcher does not switch ZeRO on: the processes train as plain DDP.",
            fix='Add deepspeed="ds_config.json" to TrainingArguments, or start it with torchrun.',
            at=trainer.place,
        )


@check({"transformers": ">=4.46"})
def deepspeed_and_fsdp(trainer: Settings) -> Iterator[Finding]:
    """Find DeepSpeed and FSDP both asked for in the arguments.

    Trainer raises ValueError: one engine shards the model.
    """
    if trainer.on("deepspeed") and trainer.on("fsdp"):
        yield error(
            "deepspeed= and fsdp= are both set",
            why="Trainer raises ValueError: FSDP together with DeepSpeed is not possible.",
            fix="Keep one: deepspeed=... with ZeRO-3, or fsdp=True with fsdp_config.",
            at=trainer.where("fsdp"),
        )

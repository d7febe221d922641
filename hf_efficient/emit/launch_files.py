"""The launch files of `recipes/launch/`: which plans they are made from, and what each says about itself."""

from __future__ import annotations

from textwrap import wrap
from typing import NamedTuple

from hf_efficient.emit.launch import launch_config, yaml_text
from hf_efficient.plan import Plan
from hf_efficient.presets import PRESETS

WIDTH = 118
NOT_HERE = "Precision, accumulation and clipping are not here: the script's own values would win over them in silence."
CARDS = "num_processes: one per GPU; --num_processes on the command line wins over this file."
ONE_CARD = (
    "num_processes: 1, since one card is where offload is needed most; with more of them, one per GPU: "
    "--num_processes on the command line wins over this file."
)
ALL_CARDS = (
    "num_processes counts the GPUs of all machines: 16 is 2 x 8. Change it here, or give --num_processes and "
    "--num_machines on the command line, alike on every machine."
)
MEETING = (
    "The address and main_process_port are those of the first machine, which the others must be able to reach; without "
    "--main_process_ip the launcher waits for a machine called None. Every machine needs the script, its data and the "
    "same packages; checkpoints want a folder that all of them see."
)
SLURM = "Under SLURM one command starts all: sbatch slurm.sh {file} train.py"
ONE_PROCESS = "--num_processes 2 beside this file starts one process in silence: take {instead}."
THREADS = "accelerate gives it all cores and says so; --num_cpu_threads_per_process N gives it N."


class LaunchFile(NamedTuple):
    """A plan as a launch file: how many processes on how many machines, what it is for and what to change."""

    plan: Plan
    doc: str
    change: tuple[str, ...]
    processes: int = 1
    machines: int = 1


def launch_files() -> dict[str, str]:
    """Return the text of every launch file under its name without suffix."""
    return {name: _text(name, file) for name, file in _files().items()}


def _files() -> dict[str, LaunchFile]:
    sharded = {name: _sharding(name) for name, preset in PRESETS.items() if _shards(name)}
    return {
        "cpu": LaunchFile(
            Plan().assume("trainer", {"use_cpu": True}, by="cpu"),
            "One process on the CPU, whether there is a GPU or not.",
            (THREADS, ONE_PROCESS.format(instead="ddp.yaml with ACCELERATE_USE_CPU=true in the environment")),
        ),
        "single_gpu": LaunchFile(Plan(), "One GPU.", (ONE_PROCESS.format(instead="ddp.yaml"),)),
        "ddp": LaunchFile(Plan(), "Several GPUs that each hold the whole training state (DDP).", (CARDS,), 2),
        **{name: _one_machine(name, plan) for name, plan in sharded.items()},
        "two_nodes": _two_machines(Plan(), "each GPU holds the whole training state (DDP)"),
        "two_nodes_zero3": _two_machines(
            sharded["zero3"], "weights, gradients and optimizer state sharded by DeepSpeed"
        ),
        "two_nodes_fsdp2": _two_machines(sharded["fsdp2"], "weights, gradients and optimizer state sharded by FSDP2"),
    }


def _shards(name: str) -> bool:
    return any(trick.family == "sharding" for trick in PRESETS[name].tricks)


def _sharding(name: str) -> Plan:
    """Return a preset's sharding alone: a launch file says nothing else, so that the script's plan decides the rest."""
    (trick,) = (trick for trick in PRESETS[name].tricks if trick.family == "sharding")
    return Plan().add(trick)


def _one_machine(name: str, plan: Plan) -> LaunchFile:
    offload = any("offload" in key for key in plan["launch"].get("deepspeed_config", {}))
    return LaunchFile(plan, PRESETS[name].doc, (ONE_CARD if offload else CARDS,), 1 if offload else 2)


def _two_machines(plan: Plan, how: str) -> LaunchFile:
    return LaunchFile(plan, f"Two machines: {how}.", (ALL_CARDS, MEETING, SLURM), 16, 2)


def _text(name: str, file: LaunchFile) -> str:
    """Return a launch file: what it is for, the command, what to change, and the keys."""
    told = "\n".join(
        f"# {line}" for text in (*file.change, NOT_HERE) for line in _lines(text.format(file=f"{name}.yaml"))
    )
    config = launch_config(file.plan, file.processes, machines=file.machines)
    where = "# On the first machine, whose address is 10.0.0.1, and on the second:\n#\n" if file.machines > 1 else ""
    return f"# {file.doc}\n#\n{where}{_commands(name, file.machines)}#\n{told}\n{yaml_text(config)}"


def _lines(text: str) -> list[str]:
    return wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _commands(name: str, machines: int) -> str:
    start = "accelerate launch --config_file"
    if machines == 1:
        words = [f"recipes/launch/{name}.yaml recipes/causal_lm.py", f"{name}.yaml train.py"]
    else:
        words = [f"{name}.yaml --main_process_ip 10.0.0.1 --machine_rank {rank} train.py" for rank in range(machines)]
    return "".join(f"#     {start} {line}\n" for line in words)

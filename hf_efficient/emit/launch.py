"""Plan -> the YAML that `accelerate launch --config_file` reads."""

from __future__ import annotations

from typing import Any

from hf_efficient.emit.fsdp import own_checkpointing
from hf_efficient.plan import Conflict, Plan

HEADER = """\
# accelerate launch --config_file {file} your_script.py
# Precision, accumulation and clipping are not here: the script's own values would win over them in silence.
"""


def launch_config(plan: Plan, processes: int = 1, *, machines: int = 1) -> dict[str, Any]:
    """Return the keys of accelerate's ClusterConfig for `processes`, on all `machines` together.

    The ZeRO keys stand inline: with `deepspeed_config_file` accelerate resolves the path against the working folder
    and refuses half of the keys beside it. For several machines, what differs from one to the next (machine_rank) and
    from run to run (main_process_ip) is left to the command line.

    Raises Conflict for offload to a disk, whose folder no key of the YAML can name.
    """
    _refuse_disk(plan)
    engine = plan.engine if plan.engine != "NO" or processes == 1 else "MULTI_GPU"
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": machines,
        **({"machine_rank": 0} if machines == 1 else {"main_process_port": 29500}),
        "num_processes": processes,
        "use_cpu": bool(plan["trainer"].get("use_cpu", False)),
        **own_checkpointing(plan, "launch")["launch"],
        "distributed_type": engine,
    }
    if machines > 1 and engine == "DEEPSPEED":
        # accelerate's own default is pdsh, which logs in from the first machine to start the others.
        config["deepspeed_config"] = config["deepspeed_config"] | {"deepspeed_multinode_launcher": "standard"}
    return config


def launch_yaml(plan: Plan, processes: int = 1, *, file: str = "launch.yaml") -> str:
    """Return `launch_config` as YAML, with how to use it in its first line."""
    header = (
        HEADER.replace("Precision, accumulation", "Accumulation") if "mixed_precision" in plan["launch"] else HEADER
    )
    return header.format(file=file) + yaml_text(launch_config(plan, processes))


def yaml_text(config: dict[str, Any]) -> str:
    """Return keys as YAML, in alphabetical order."""
    import yaml

    return str(yaml.safe_dump(config, sort_keys=True))


def _refuse_disk(plan: Plan) -> None:
    if "nvme" in plan["launch"].get("deepspeed_config", {}).values():
        author = plan.author("launch", "deepspeed_config")
        raise Conflict(
            f"{author} offloads to a disk, and accelerate's launch YAML hands no folder of it on to the processes: "
            "start with `accelerate launch --use_deepspeed` and no YAML, and give the script the plan, or the file of "
            "`emit deepspeed` as TrainingArguments(deepspeed=...) or DeepSpeedPlugin(hf_ds_config=...)."
        )

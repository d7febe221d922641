"""Plan -> the YAML that `accelerate launch --config_file` reads."""

from __future__ import annotations

from typing import Any

from hf_efficient.emit.fsdp import own_checkpointing
from hf_efficient.plan import Plan

HEADER = """\
# accelerate launch --config_file {file} your_script.py
# Precision, accumulation and clipping are not here: the script's own values would win over them in silence.
"""


def launch_config(plan: Plan, processes: int = 1) -> dict[str, Any]:
    """Return the keys of accelerate's ClusterConfig for `processes` on one machine.

    The ZeRO keys stand inline: with `deepspeed_config_file` accelerate resolves the path against the working folder
    and refuses half of the keys beside it.
    """
    engine = plan.engine if plan.engine != "NO" or processes == 1 else "MULTI_GPU"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": processes,
        "use_cpu": False,
        **own_checkpointing(plan, "launch")["launch"],
        "distributed_type": engine,
    }


def launch_yaml(plan: Plan, processes: int = 1, *, file: str = "launch.yaml") -> str:
    """Return `launch_config` as YAML, with how to use it in its first line."""
    import yaml

    header = (
        HEADER.replace("Precision, accumulation", "Accumulation") if "mixed_precision" in plan["launch"] else HEADER
    )
    return header.format(file=file) + yaml.safe_dump(launch_config(plan, processes), sort_keys=True)

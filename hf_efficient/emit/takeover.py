"""The engine of the launcher as the plan's own, where the plan says nothing about one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hf_efficient.emit.launcher import launchers_engine
from hf_efficient.plan import Conflict, Plan, flatten
from hf_efficient.tricks import catalogue

BY = "launcher"
STAGE = "ACCELERATE_DEEPSPEED_ZERO_STAGE"
FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
DEVICES = {
    "offload_optimizer": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
}
KEPT = ("auto_wrap_policy", "state_dict_type", "cpu_ram_efficient_loading")
"""FSDP's settings in which the launch YAML's own words, where it has any, stand over those of the trick fsdp."""

SAID_TWICE = {
    "gradient_accumulation_steps": {
        "trainer": "gradient_accumulation_steps",
        "accelerator": "gradient_accumulation_steps",
    },
    "gradient_clipping": {"trainer": "max_grad_norm", "loop": "max_grad_norm"},
}
"""Key of a DeepSpeed file -> target and key of a plan that say the same."""


def take_launchers_engine(plan: Plan) -> Plan:
    """Return `plan` with the engine that `accelerate launch` chose, as the trick that says the same, by the launcher.

    A plan that names an engine comes back as it is, and so does one under an engine that no trick stands for (ZeRO
    stage 0, FSDP1): the stack makes that one by itself. A DeepSpeed file of the launcher's is the configuration, word
    for word.

    Raises ValueError for a file that cannot be read and for offload to a disk that the launch YAML cannot name;
    Conflict where file and plan differ about clipping or accumulation.
    """
    if plan.engine != "NO":
        return plan
    if launchers_engine() == "DEEPSPEED":
        file = os.environ.get(FILE, "none")
        return _take_file(plan, Path(file)) if file != "none" else _take_stage(plan)
    if launchers_engine() == "FSDP" and os.environ.get("FSDP_VERSION") == "2":
        return _take_fsdp(plan)
    return plan


def _take_stage(plan: Plan) -> Plan:
    stage = os.environ.get(STAGE, "2")  # accelerate's own default
    devices = {key: os.environ.get(variable, "none").lower() for key, variable in DEVICES.items()}
    if "nvme" in devices.values():
        raise ValueError(
            "The launch YAML offloads to nvme, and accelerate hands its path on to nobody: name the folder in the "
            "plan, zero(3, offload='all', nvme_path='/local_nvme'), and take the offload out of the YAML."
        )
    if stage not in ("1", "2", "3"):
        return plan
    return plan.add(catalogue()["zero"](int(stage), offload=_offload(devices)), by=BY)


def _take_file(plan: Plan, file: Path) -> Plan:
    """Return `plan` with a DeepSpeed file as its configuration; what the plan says must not contradict it."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        zero = config["zero_optimization"]
        stage = int(zero.get("stage", 0))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The launcher names the DeepSpeed file {file}, and no ZeRO stage can be read from it ({error}): "
            "check deepspeed_config_file, which is resolved against the working folder."
        ) from None
    for key, ours in SAID_TWICE.items():
        plan = _agree(plan, key, config.get(key), ours)
    if stage not in (1, 2, 3):
        return plan
    devices = {key: str((zero.get(key) or {}).get("device", "none")) for key in DEVICES}
    plan = plan.add(catalogue()["zero"](stage, offload=_offload(devices)), by=BY)
    return plan.drop("deepspeed", plan["deepspeed"]).override("deepspeed", dict(flatten(config)), by=BY)


def _agree(plan: Plan, key: str, value: Any, ours: Mapping[str, str]) -> Plan:
    """Return `plan` with a number of the file's about which it is silent. Raises Conflict where it has another."""
    if not isinstance(value, int | float):
        return plan  # "auto" is filled with the plan's
    for target, name in ours.items():
        if plan[target].get(name, value) != value:
            raise Conflict(
                f"The launcher's DeepSpeed file says {key}: {value}, {plan.author(target, name)} says "
                f'{plan[target][name]}: write "auto" in the file, or keep one of the two.'
            )
        plan = plan.assume(target, {name: value}, by=BY)
    return plan


def _take_fsdp(plan: Plan) -> Plan:
    def says(key: str, otherwise: str) -> str:
        return os.environ.get(f"FSDP_{key.upper()}", otherwise)

    trick = catalogue()["fsdp"](
        reshard_after_forward=says("reshard_after_forward", "true").lower() == "true",
        offload=says("offload_params", "false").lower() == "true",
    )
    plan = plan.add(trick, by=BY)
    for key in KEPT:
        word = os.environ.get(f"FSDP_{key.upper()}")
        if word and word != "None":
            value = word.lower() == "true" if word.lower() in ("true", "false") else word
            for target, place in (("trainer", "fsdp_config"), ("accelerator", "fsdp_plugin")):
                plan = plan.override(target, {f"{place}.{key}": value}, by=BY)
    silent = not any(one.family == "checkpointing" for one in plan.tricks)
    if silent and says("activation_checkpointing", "false").lower() == "true":
        plan = plan.add(catalogue()["activation_checkpointing"](), by=BY)
    return plan


def _offload(devices: Mapping[str, str]) -> Literal["optimizer", "all"] | None:
    optimizer, weights = (devices[key] not in ("none", "None") for key in ("offload_optimizer", "offload_param"))
    return "all" if weights else "optimizer" if optimizer else None

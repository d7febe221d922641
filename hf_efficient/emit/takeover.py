"""The engine of the launcher as the plan's own, where the plan says nothing about one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hf_efficient.emit.deepspeed import offload_devices
from hf_efficient.emit.launcher import launchers_engine, launchers_file, read_configuration
from hf_efficient.plan import Conflict, Plan, flatten
from hf_efficient.tricks import catalogue
from hf_efficient.wording import listed

BY = "launcher"
STAGE = "ACCELERATE_DEEPSPEED_ZERO_STAGE"
DEVICES = {
    "offload_optimizer": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
}
SAID = ("gradient_clipping", "gradient_accumulation_steps")
"""What a DeepSpeed configuration must say, for the engine to do as the plan does."""
KEPT = ("auto_wrap_policy", "state_dict_type", "cpu_ram_efficient_loading")
"""FSDP's settings in which the launch YAML's own words, where it has any, stand over those of the trick fsdp."""


def take_launchers_engine(plan: Plan) -> Plan:
    """Return `plan` with the engine that `accelerate launch` chose, as the trick that says the same, by the launcher.

    A plan that names an engine keeps it. A DeepSpeed file of the launcher's is the configuration, word for word. An
    engine that no trick stands for (ZeRO stage 0, FSDP1) is made by accelerate alone, and a note says so.

    Raises ValueError for a file that cannot be read and for offload to a disk that the launch YAML cannot name;
    Conflict where file and plan want different sharding or optimizers.
    """
    name, config = launchers_file()
    if config and plan.engine in ("NO", "DEEPSPEED"):
        return _take_file(plan, f"The launcher's DeepSpeed file {name}", config)
    fsdp_2 = launchers_engine() == "FSDP" and os.environ.get("FSDP_VERSION") == "2"
    if plan.engine == "FSDP" and fsdp_2:
        return _take_words(plan)
    if plan.engine != "NO" or launchers_engine() == "NO":
        return plan
    if launchers_engine() == "DEEPSPEED":
        return _take_stage(plan)
    return _take_fsdp(plan) if fsdp_2 else _left_to_accelerate(plan, "FSDP1", "fsdp_version: 2 shards layer by layer")


def _take_stage(plan: Plan) -> Plan:
    stage = os.environ.get(STAGE, "2")  # accelerate's own default
    devices = {key: os.environ.get(variable, "none").lower() for key, variable in DEVICES.items()}
    if "nvme" in devices.values():
        raise ValueError(
            "The launch YAML offloads to nvme, and accelerate hands its path on to nobody: name the folder in the "
            "plan, zero(3, offload='all', nvme_path='/local_nvme'), and take the offload out of the YAML."
        )
    return _take_zero(plan, stage, devices)


def take_your_engine(plan: Plan, yours: Mapping[str, Any]) -> Plan:
    """Return `plan` with a DeepSpeed configuration that you pass as its own, word for word, by you.

    `yours` are fields of TrainingArguments (`deepspeed`, a file or a mapping) or keywords of Accelerator
    (`deepspeed_plugin`). Raises ValueError for a file that cannot be read, and Conflict beside another engine, where
    you switch the plan's own off, and where your configuration contradicts the plan.
    """
    name = next((name for name in ("deepspeed", "deepspeed_plugin", "fsdp") if name in yours), "")
    given = yours.get(name)
    several = name == "deepspeed_plugin" and isinstance(given, Mapping)  # accelerate's way to train several models
    if not name or (name == "fsdp" and given) or several:
        return plan
    engine = "FSDP" if name == "fsdp" else "DEEPSPEED"
    if plan.engine == engine or (launchers_file()[0] if given else launchers_engine() == engine):
        author = plan.author("launch", "distributed_type") or "The launcher"
        raise Conflict(f"{author} makes the engine, and you pass {name}={given!r:.60}: leave one of the two out.")
    if not given:
        return plan
    config = getattr(given, "deepspeed_config", given)
    config = config if isinstance(config, Mapping) else read_configuration(str(config), f"Your {name}={config!r}")
    return _take_file(plan, f"Your {name}", dict(config), by="you")


def _take_zero(plan: Plan, stage: str, devices: Mapping[str, str], *, by: str = BY) -> Plan:
    """Return `plan` with the trick zero of this stage, and with the offload of these devices and no other."""
    if stage not in ("1", "2", "3"):
        return _left_to_accelerate(plan, f"ZeRO stage {stage}", "stage 1 and above share the training state")
    optimizer, weights = (devices[key] not in ("none", "None") for key in DEVICES)
    offload = "all" if weights else "optimizer" if optimizer else None
    plan = plan.add(catalogue()["zero"](int(stage), offload=offload), by=by)
    if weights and not optimizer:  # no trick says that
        plan = plan.drop("deepspeed", ["zero_optimization.offload_optimizer"])
        plan = plan.drop("launch", ["deepspeed_config.offload_optimizer_device"])
    return plan


def _left_to_accelerate(plan: Plan, engine: str, instead: str) -> Plan:
    return plan.note(
        f"The launcher chose {engine}, for which there is no trick: accelerate makes it from the launcher's words "
        f"alone, and nothing here knows of it ({instead})."
    )


def _take_file(plan: Plan, name: str, config: dict[str, Any], *, by: str = BY) -> Plan:
    """Return `plan` with a DeepSpeed configuration as its own; what the plan names must not contradict it.

    `name` begins sentences about it. DeepSpeed would clip at 1.0 and count one micro-batch where it says nothing.
    """
    silent = [key for key in SAID if key not in config]
    config = config | dict.fromkeys(silent, "auto")
    if plan["deepspeed"] == config:
        return plan
    if silent:
        plan = plan.note(f"{name} says nothing of {listed(silent)}: there the plan's word holds.")
    zero = config["zero_optimization"]
    plan = _require_no_other_optimizer(plan, name, config)
    if plan.engine == "NO":
        plan = _take_zero(plan, str(zero.get("stage", 0)), offload_devices(zero), by=by)
        if plan.engine == "NO":
            return plan
    else:
        _require_the_files_sharding(plan, name, zero)
        plan = plan.note(f"{name} is the configuration, with all its keys.")
    return plan.drop("deepspeed", plan["deepspeed"]).override("deepspeed", dict(flatten(config)), by=by)


def _require_the_files_sharding(plan: Plan, name: str, zero: Mapping[str, Any]) -> None:
    ours, file = (
        {"stage": block.get("stage", 0), **offload_devices(block)}
        for block in (plan["deepspeed"]["zero_optimization"], zero)
    )
    for key, theirs in file.items():
        if (mine := ours[key]) != theirs:
            author = plan.author("launch", "distributed_type")
            raise Conflict(f"{name} says {key}: {theirs}, {author} says {mine}: keep one of the two.")


def _require_no_other_optimizer(plan: Plan, name: str, config: Mapping[str, Any]) -> Plan:
    """Raise Conflict for an optimizer block beside an optimizer of the plan's; note what a block decides otherwise."""
    block = (config.get("optimizer") or {}).get("type")
    author = plan.author("optimizer", "name")
    if block and author:
        raise Conflict(
            f"{name} has an optimizer block ({block}), which would take the place of "
            f"{author} without a word: take the block out, or {author}."
        )
    decided = [key for key in ("optimizer", "scheduler") if config.get(key)]
    return plan.note(*(f"{name} decides the {key}: {config[key].get('type')}." for key in decided))


def _take_fsdp(plan: Plan) -> Plan:
    trick = catalogue()["fsdp"](
        reshard_after_forward=_says("reshard_after_forward", "true"), offload=_says("offload_params", "false")
    )
    plan = _take_words(plan.add(trick, by=BY))
    silent = not any(one.family == "checkpointing" for one in plan.tricks)
    if silent and _says("activation_checkpointing", "false"):
        offload = _says("activation_checkpointing_offload", "false")
        plan = plan.add(catalogue()["activation_checkpointing"](offload=offload), by=BY)
    return plan


def _take_words(plan: Plan) -> Plan:
    """Return `plan` with the launch YAML's own words about wrapping, loading and saving under FSDP2."""
    for key in KEPT:
        word = os.environ.get(f"FSDP_{key.upper()}")
        if word and word != "None":
            value = word if (switch := _switch(word)) is None else switch
            for target, place in (("trainer", "fsdp_config"), ("accelerator", "fsdp_plugin")):
                if plan[target].get(place, {}).get(key) != value:
                    plan = plan.override(target, {f"{place}.{key}": value}, by=BY)
    return plan


def _says(key: str, otherwise: str) -> bool:
    """Return what the launch YAML says about a switch of FSDP2; raise ValueError where it is none."""
    word = os.environ.get(f"FSDP_{key.upper()}", otherwise)
    if (switch := _switch(word)) is None:
        raise ValueError(f"The launch YAML says fsdp_{key}: {word}, and FSDP2 takes true or false: write one of them.")
    return switch


def _switch(word: str) -> bool | None:
    """Return what accelerate makes of a word; None for one that is neither true nor false."""
    from accelerate.utils import str_to_bool

    try:
        return bool(str_to_bool(word))
    except ValueError:
        return None

"""The engine of a setup in one spelling, whichever file names it: DeepSpeed's ZeRO, or FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.finding import Place
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

JSON_PATHS = {
    "stage": "zero_optimization.stage",
    "offload_optimizer": "zero_optimization.offload_optimizer.device",
    "offload_param": "zero_optimization.offload_param.device",
    "gather_16bit": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "fp16": "fp16.enabled",
    "bf16": "bf16.enabled",
    "optimizer": "optimizer.type",
    "scheduler": "scheduler.type",
}
YAML_PATHS = {
    "stage": "zero_stage",
    "offload_optimizer": "offload_optimizer_device",
    "offload_param": "offload_param_device",
    "gather_16bit": "zero3_save_16bit_model",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
SHARDING_VERSION_1 = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD", 5: "HYBRID_SHARD_ZERO2"}


def with_engines(setup: Setup) -> Setup:
    """Return the setup with `zero` and `fsdp` in one spelling; None where no file names the engine."""
    return setup.having(zero=_zero(setup), fsdp=_fsdp(setup))


def _zero(setup: Setup) -> Settings | None:
    if setup.deepspeed is not None:
        return _translated(setup.deepspeed, JSON_PATHS)
    for owner, below in ((setup.launch, "deepspeed_config"), (setup.accelerator, "deepspeed_plugin")):
        if owner is not None and owner.said(below) and not owner.off(below):
            return _translated(owner.part(below), YAML_PATHS)
    if setup.launch is not None and setup.launch.text("distributed_type") == "DEEPSPEED":
        return Settings(place=setup.launch.where("distributed_type"), open=True)
    if setup.trainer is not None and setup.trainer.said("deepspeed") and not setup.trainer.off("deepspeed"):
        return Settings(place=setup.trainer.where("deepspeed"), open=True)
    return Settings(place=setup.launch.place, open=True) if unseen(setup) and setup.launch is not None else None


def unseen(setup: Setup) -> bool:
    """Is the launch file that the run names not at hand, so that any engine may run it?"""
    return setup.launch is not None and setup.launch.open and not setup.launch.said("distributed_type")


def _fsdp(setup: Setup) -> Settings | None:
    """Return version, sharding, offload, units and the rest of FSDP's configuration with the prefix `fsdp_` cut off."""
    launch, trainer = setup.launch, setup.trainer
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    if launch is not None and launch.text("distributed_type") == "FSDP":
        _add(launch, "fsdp_config", values, places)
    if trainer is not None and trainer.on("fsdp"):
        _add(trainer, "fsdp_config", values, places)
        values.setdefault("asked", trainer.get("fsdp"))
    elif not values and not (launch is not None and launch.text("distributed_type") == "FSDP"):
        return None
    open = any(owner is not None and owner.open for owner in (launch, trainer) if owner is launch)
    owner = launch if launch is not None and launch.text("distributed_type") == "FSDP" else trainer
    place = owner.where("fsdp_config") if owner is not None else Place()
    return Settings(values, place=place, places=places, open=open)


def _add(owner: Settings, key: str, values: dict[str, Any], places: dict[str, Place]) -> None:
    part = owner.part(key)
    for name in part:
        short = name.removeprefix("fsdp_")
        values[short] = part.get(name)
        places[short] = part.where(name)


def _translated(part: Settings, paths: Mapping[str, str]) -> Settings:
    values = {name: part.get(path) for name, path in paths.items() if part.said(path)}
    places = {name: part.where(path) for name, path in paths.items()}
    return Settings(values, place=part.place, places=places, open=part.open)

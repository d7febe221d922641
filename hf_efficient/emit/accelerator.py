"""Plan -> the keywords of accelerate.Accelerator, kept as data so that they can be built and also written out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.emit.deepspeed import loop_config, loop_settings
from hf_efficient.emit.engine_rules import STOCK, fit_engine
from hf_efficient.emit.fsdp import own_checkpointing
from hf_efficient.plan import Plan

CLASSES = {
    "dataloader_config": "DataLoaderConfiguration",
    "deepspeed_plugin": "DeepSpeedPlugin",
    "dynamo_plugin": "TorchDynamoPlugin",
    "fsdp_plugin": "FullyShardedDataParallelPlugin",
}
"""Keyword of Accelerator -> the class in accelerate.utils that its mapping becomes."""

# Trainer's default. With accelerate's own, persistent workers change the order of the data from the second epoch on:
# torch draws a seed per epoch without them and only one with them, from the generator that shuffles.
SAME_ORDER = {"use_seedable_sampler": True}


@dataclass(frozen=True)
class Call:
    """A call of a class of accelerate.utils; its repr is its source."""

    name: str
    keywords: Mapping[str, Any]

    def build(self) -> Any:
        """Return the object."""
        import accelerate.utils

        return getattr(accelerate.utils, self.name)(**self.keywords)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.keywords.items())})"


def require_no_other_plan(plan: Plan) -> None:
    """Raise ValueError where this process has the precision or the compiler of an earlier plan.

    accelerate keeps both for the whole process: an Accelerator that says nothing of them gets the first one's.
    TrainingArguments start afresh.
    """
    from accelerate.state import AcceleratorState

    kept = AcceleratorState._shared_state
    if not kept or plan.engine != "NO":
        return
    compiler = kept.get("dynamo_plugin")
    ours = plan["accelerator"].get("dynamo_plugin", {})
    found = [kept.get("_mixed_precision") or "no"]
    wanted = [plan["accelerator"].get("mixed_precision") or "no"]
    if compiler is not None and isinstance(ours, Mapping):
        asked = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no")  # by the launcher
        found += [compiler.backend.value.lower(), bool(compiler.use_regional_compilation)]
        wanted += [str(ours.get("backend", asked)).lower(), bool(ours.get("use_regional_compilation", False))]
    if found != wanted:
        raise ValueError(
            f"An earlier Accelerator of this process keeps its precision and compiler ({_words(found)}), and this plan "
            f"wants others ({_words(wanted)}): start another process for it."
        )


def _words(state: list[Any]) -> str:
    names = ("precision", "compiler", "regional")
    return ", ".join(f"{name} {value}" for name, value in zip(names, state, strict=False) if value not in (False, "no"))


def accelerator_keywords(plan: Plan, launchers_engine: str = "NO") -> dict[str, Any]:
    """Return the keywords of Accelerator for `plan`, objects of accelerate's own as `Call`.

    Where the launcher chose DeepSpeed and the plan is silent, its engine is told the plan's clipping and accumulation.
    """
    plan = fit_engine(plan, str(plan["optimizer"].get("name", STOCK)), door="loop")
    keywords: dict[str, Any] = {"dataloader_config": SAME_ORDER} | own_checkpointing(plan, "accelerator")["accelerator"]
    if plan.engine == "DEEPSPEED":
        keywords.setdefault("deepspeed_plugin", {"hf_ds_config": loop_config(plan)})
    elif launchers_engine == "DEEPSPEED":
        keywords.setdefault("deepspeed_plugin", loop_settings(plan))
    return {
        key: Call(CLASSES[key], value) if key in CLASSES and isinstance(value, Mapping) else value
        for key, value in keywords.items()
    }

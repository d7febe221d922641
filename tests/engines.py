"""DeepSpeed and FSDP2 made real on CPUs over gloo, for tests and benchmarks alone, and what shows that they are.

Two shims, none of which the package has: DeepSpeed is started with gloo and without its shared-memory kernel, which
would be compiled; accelerate is told that its processes have GPUs, else it puts plain data parallelism in FSDP's place
without a word, and our own doors that FSDP's need of an accelerator is met.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def install() -> None:
    """Install the shims of the engine that `accelerate launch` chose; with none, nothing."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        start_deepspeed()
    elif os.environ.get("ACCELERATE_USE_FSDP") == "true":
        call_the_cpus_gpus()


def start_deepspeed() -> None:
    """Start DeepSpeed's own communication before a model is built: zero.Init sees one process without it."""
    import deepspeed
    from accelerate import PartialState

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    PartialState(cpu=True)  # a hand-written loop would find one process


def call_the_cpus_gpus() -> None:
    """Let accelerate believe that its processes have a GPU each, and our doors that there is an accelerator."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    from hf_efficient.emit import loop, trainer

    stock = PartialState.__init__

    def start(self: Any, *args: Any, **keywords: Any) -> None:
        stock(self, *args, **keywords)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = start
    for door in (trainer, loop):
        door.require = lambda *_, **__: None  # type: ignore[assignment]
    PartialState(cpu=True)  # before the model, of which one process alone reads the weights


def engine_facts(engine: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    """Return who trains, ZeRO's stage, and the share of weights and of what the optimizer updates in this process.

    `engine` is the prepared model, `model` the one inside, `optimizer` the prepared optimizer.
    """
    parameters = list(model.parameters())
    kind, stage, told = type(engine).__name__, 0, {}
    elements = sum(getattr(weight, "ds_numel", weight.numel()) for weight in parameters)
    if kind == "DeepSpeedEngine":
        stage, inner = engine.zero_optimization_stage(), engine.optimizer
        flat = inner.fp32_partitioned_groups_flat if stage == 3 else inner.single_partition_of_fp32_groups
        weights = sum(weight.ds_tensor.numel() if hasattr(weight, "ds_id") else weight.numel() for weight in parameters)
        updated = sum(part.numel() for part in flat)
        told = {
            "clipping": engine.gradient_clipping(),
            "accumulation": engine.gradient_accumulation_steps(),
            "updates_by": type(inner.optimizer).__name__,
        }
    else:
        kind = "FSDP2 DTensor" if all(type(weight).__name__ == "DTensor" for weight in parameters) else kind
        weights = sum(_local(weight).numel() for weight in parameters)
        updated = sum(_local(p).numel() for group in optimizer.param_groups for p in group["params"])
    return {"engine": kind, "stage": stage, "weights": weights / elements, "optimizer": updated / elements, **told}


def left_auto(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a DeepSpeed configuration that are still "auto", joined by dots."""
    from hf_efficient.plan import flatten

    return [key for key, value in flatten(config) if value == "auto"]


def _local(weight: Any) -> Any:
    return weight.to_local() if hasattr(weight, "to_local") else weight

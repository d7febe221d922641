"""What a plan's engine exchanges for a model: its bytes, from the same weights and units that its memory comes from."""

from __future__ import annotations

import math

import torch
from torch import nn

from hf_efficient.memory.fsdp import units_of
from hf_efficient.memory.reading import Run
from hf_efficient.memory.traffic import DDP_BUCKET, MASTER, Exchange
from hf_efficient.memory.units import left_alone, measure
from hf_efficient.memory.zero import bucket_size, kept_gathered, persistent


def exchange_of(model: nn.Module, run: Run, *, ranks: int) -> Exchange:
    """Return what the engine of `run` exchanges among `ranks` for `model`, in the dtypes that `share_out` leaves."""
    make = {"DEEPSPEED": _of_zero, "FSDP": _of_fsdp}.get(run.engine, _of_ddp)
    return make(model, run, ranks)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _bytes(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _of_ddp(model: nn.Module, run: Run, ranks: int) -> Exchange:
    """DDP reduces gradients in the dtype of their weights, float32 under autocast of float32 weights too."""
    trained = _trained(model)
    return Exchange(
        ranks=ranks,
        accumulation=run.accumulation,
        trained=sum(parameter.numel() for parameter in trained),
        gradients=_bytes(trained),
        scatter=False,
        reductions=math.ceil(_bytes(trained) / DDP_BUCKET),
    )


def _of_zero(model: nn.Module, run: Run, ranks: int) -> Exchange:
    """Stages 1 and 2 all-reduce whole buckets unless use_multi_rank_bucket_allreduce is off; stage 3 scatters.

    Source: average_tensor in deepspeed/runtime/zero/stage_1_and_2.py, __reduce_and_partition_ipg_grads in stage3.py of
    0.19.8. Gradients are reduced in the engine's 16 bits (communication_data_type). A model with quantized weights is
    not partitioned, and stage 3 is as stage 2 then.
    """
    how, trained = run.zero, _trained(model)
    numbers = sum(parameter.numel() for parameter in trained)
    quantized = any(getattr(module, "quant_state", None) is not None for module in model.modules())
    stage = min(int(how.get("stage", 0)), 2 if quantized else 3)
    on_host = [what for what in ("optimizer", "param") if _away((how.get(f"offload_{what}") or {}).get("device"))]
    whole_buckets = stage < 3 and (
        how.get("use_multi_rank_bucket_allreduce", True) or not how.get("contiguous_gradients", True)
    )
    weights = _bytes(list(model.parameters())) if stage == 3 else 0
    large = [any(p.numel() > persistent(model, how) for p in m.parameters(recurse=False)) for m in model.modules()]
    return Exchange(
        engine="DEEPSPEED",
        stage=stage,
        ranks=ranks,
        accumulation=run.accumulation,
        trained=numbers,
        gradients=_bytes(trained),
        weights=weights,
        kept=min(weights, kept_gathered(model, how)) if weights else 0,
        scatter=bool(how.get("reduce_scatter", True)) and not whole_buckets,
        offload={0: None, 1: "optimizer", 2: "all"}[len(on_host)] if stage else None,
        stored=weights // ranks if len(on_host) == 2 else 0,
        down=MASTER * numbers // ranks if on_host else 0,
        units=sum(large) if weights else 0,
        reductions=math.ceil(numbers / bucket_size(model, how)),
    )


def _away(device: str | None) -> bool:
    return device not in (None, "none")


def _of_fsdp(model: nn.Module, run: Run, ranks: int) -> Exchange:
    """FSDP's units, as `fsdp` measures them: gathered and reduced in the mixed dtype, padded."""
    how, mixed = run.fsdp, getattr(torch, run.autocast) if run.autocast else None
    flat = int(how.get("version", how.get("fsdp_version", 2))) == 1
    alone = left_alone(model, str(how.get("ignored_modules") or ""))
    units = units_of(model, flat, alone)
    measure(model, units, ranks, mixed, flat=flat)
    stay = how.get("reshard_after_forward", True) in (False, "SHARD_GRAD_OP")
    offload = bool(how.get("cpu_offload", how.get("offload_params", False)))
    reentrant = bool(run.checkpointing and run.checkpointing.get("reentrant"))
    return Exchange(
        engine="FSDP",
        ranks=ranks,
        accumulation=run.accumulation,
        trained=sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and name not in alone),
        gradients=sum(unit.gradient for unit in units),
        weights=sum(unit.gathered for unit in units),
        kept=sum(unit.gathered for unit in units if unit.kept or stay),
        passes=3 if flat and reentrant else 2,
        offload="all" if offload else None,
        stored=sum(unit.shard for unit in units) if offload else 0,
        down=sum(unit.kept_gradient for unit in units) if offload else 0,
        units=sum(bool(unit.names) for unit in units),
        reductions=sum(unit.trained for unit in units),
    )

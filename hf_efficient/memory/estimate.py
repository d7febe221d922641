"""The estimate: plan, model and batch -> the memory of one training step."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hf_efficient.effective_batch import at_processes
from hf_efficient.machine import Machine
from hf_efficient.memory import lengths
from hf_efficient.memory.assemble import assemble, quiet
from hf_efficient.memory.build import body_of
from hf_efficient.memory.changes import Again, cheapest
from hf_efficient.memory.context import workspace_mib
from hf_efficient.memory.fit import judged
from hf_efficient.memory.inputs import lengths_assumed
from hf_efficient.memory.later import evaluation
from hf_efficient.memory.optimizers import check
from hf_efficient.memory.reading import Run, read
from hf_efficient.memory.results import GIB, PARTS, Batch, Estimate, Timeline
from hf_efficient.memory.shares import Shares, counted
from hf_efficient.memory.step import Step
from hf_efficient.memory.taken import share_out, take
from hf_efficient.memory.timeline import moments
from hf_efficient.plan import Plan, require_plan
from hf_efficient.train.undisturbed import random_numbers_kept

MOST = 2**27
"""Tokens of a batch, of which whole numbers are made."""
ALWAYS = (
    "The model's outputs are let go before the backward pass, as Trainer does; a loop that keeps them needs the logits "
    "once more.",
)


def estimate(
    plan: Plan,
    model: Any,
    *,
    batch: Batch,
    machine: Machine | None = None,
    gpus: int = 1,
    prepared_for_kbit: bool = False,
) -> Estimate:
    """Return the memory of one training step of `model` under `plan`, traced without data and without a GPU.

    `model`: a Hub id, a folder with a config.json, a configuration, or a module of yours, which stays as it is.
    `batch`: rows and lengths of one micro-batch on one GPU. `machine`: the card to fit; without it `cards` says which
    do. `gpus`: ranks; the figures are those of one. `prepared_for_kbit`: 4-bit weights went through PEFT's
    `prepare_model_for_kbit_training`, as SFTTrainer lets them, which makes everything else float32.

    Raises ValueError for what cannot be built, a forward pass that depends on data, and impossible batches.
    """
    again = estimator(model, machine=machine, gpus=gpus, prepared_for_kbit=prepared_for_kbit)
    found = again(plan, batch)
    return (
        replace(found, changes=(*found.changes, *cheapest(plan, batch, found, again))) if found.fits is False else found
    )


def estimator(model: Any, *, machine: Machine | None, gpus: int, prepared_for_kbit: bool = False) -> Again:
    """Return what estimates `model` under a plan and a batch as `estimate` does, but for the changes to make it fit."""

    def again(plan: Plan, batch: Batch) -> Estimate:
        require_plan(plan)
        _check(batch, machine, gpus)
        asked = _Asked(_settled(plan, batch, gpus), model, batch, machine, gpus, prepared_for_kbit)
        with warnings.catch_warnings(), quiet(), random_numbers_kept():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by old names
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            return _estimated(asked)

    return again


class _Asked(NamedTuple):
    plan: Plan
    model: Any
    batch: Batch
    machine: Machine | None
    gpus: int
    prepared_for_kbit: bool


def _settled(plan: Plan, batch: Batch, gpus: int) -> Plan:
    """Return the plan with this batch, and the accumulation that its effective batch takes."""
    if plan["loop"].get("effective_batch"):
        plan = plan.override("trainer", {"per_device_train_batch_size": batch.size}, by="you")
    return at_processes(plan, gpus)


def _check(batch: Batch, machine: Machine | None, gpus: int) -> None:
    if not isinstance(batch, Batch):
        raise ValueError(f"batch={batch!r} is no Batch: pass Batch(size=4, seq_len=2048).")
    if machine is not None and not isinstance(machine, Machine):
        raise ValueError(f"machine={machine!r} is no Machine: pass Machine.named({machine!r}).")
    for name in ("size", "seq_len", "target_len", "eval_size", "eval_rows"):
        value = getattr(batch, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"{name}={value!r} is no number of rows or tokens, because one is the least: pass {name}=1."
            )
    if batch.size * (batch.seq_len or 1) > MOST:
        raise ValueError(
            f"{batch.size} rows of {batch.seq_len or 1} tokens are more than any GPU holds: pass at most {MOST:,}."
        )
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise ValueError(f"gpus={gpus} is no number of GPUs, because one is the least: pass gpus=1.")


def _estimated(asked: _Asked) -> Estimate:
    plan, batch, machine = asked.plan, asked.batch, asked.machine
    run = read(plan)
    check(run.optimizer["name"])
    said: list[str] = []
    built = assemble(plan, run, asked.model, prepared_for_kbit=asked.prepared_for_kbit, said=said)
    said += _remarks(asked, run, built)
    shares = share_out(built, run, asked.gpus)
    how = how_taken(run, shares, machine)
    params, trainable = counted(built)
    taken = take(built, run, shares, batch=batch, how=how, gpus=asked.gpus)
    made, standing = taken.timeline, taken.standing
    if lengths.varies(batch) and not run.packed:
        said.append(lengths.SAID if taken.reserve.others else lengths.OTHERWISE)
    states = sum(standing.values()) - standing["gradients"]
    found = Estimate(
        model=_name(asked.model, built),
        plan=" ".join(trick.name for trick in plan.tricks),
        batch=batch,
        params=params,
        trainable_params=trainable,
        allocated_gib=made.live()[made.peak] / GIB,
        reserved_gib=taken.reserve.on().reserved / GIB,
        gpus=asked.gpus,
        breakdown={part: made.parts[part][made.peak] / GIB for part in PARTS},
        peak_at=made.label,
        host_gib=(shares.host + taken.update.host + taken.host) / GIB,
        moments=moments(made) | {"resume": (states + _twice(run, standing, asked.gpus)) / GIB},
        assumptions=(
            *ALWAYS, *said, *run.assumptions, *how.said, *shares.assumptions,
            *taken.update.notes,
        ),
        timeline=made, reserve=taken.reserve, demand=taken.demand,
    )  # fmt: skip
    if batch.eval_size:
        passing, kept = evaluation(built, run, batch, how, asked.gpus)
        gathered = max(made.parts["weights"]) - standing["weights"]  # of other ranks
        found = _with_evaluation(found, standing, passing + gathered, kept)
    return judged(found, machine, plan)


def _with_evaluation(found: Estimate, standing: dict[str, int], passing: int, kept: int) -> Estimate:
    """Return the estimate with an evaluation in it, which may be the highest moment of the run."""
    standing = standing | {"gradients": 0}
    total = (sum(standing.values()) + passing) / GIB
    found = replace(found, moments={**found.moments, "evaluation": total})
    if total <= found.allocated_gib:
        return found
    parts = {part: standing.get(part, 0) / GIB for part in PARTS}
    parts["logits"] += kept / GIB
    parts["temporary"] += (passing - kept) / GIB
    label = "the kept logits of the evaluation" if kept > passing / 2 else "the evaluation's forward pass"
    return replace(found, allocated_gib=total, breakdown=parts, peak_at=label)


def _twice(run: Run, standing: dict[str, int], gpus: int) -> int:
    """Return the bytes that going on from a checkpoint takes beside the state itself.

    Trainer reads a checkpoint to the host, and the state is on the card once; with several processes each reads its
    optimizer state to its card before it is copied (`Trainer._load_optimizer_and_scheduler`).
    """
    return standing["optimizer"] if gpus > 1 and run.engine == "NO" else 0


def on_cpu(plan: Plan, model: Any, batch: Batch) -> Timeline:
    """Return the timeline of a step on a CPU, with its own kernels and autocast: to be held against a real one.

    All but the imitation of CUDA is what `estimate` does.
    """
    run = read(plan)
    built = assemble(plan, run, model)
    shares = share_out(built, run, 1)
    how = replace(how_taken(run, shares, None), imitate=False, workspaces=0)
    return take(built, run, shares, batch=batch, how=how).timeline


def _name(model: Any, built: Any) -> str:
    if isinstance(model, (str, Path)):
        return str(model)
    return getattr(getattr(built, "config", None), "name_or_path", "") or type(body_of(built)).__name__


def _remarks(asked: _Asked, run: Run, built: nn.Module) -> list[str]:
    """Return what is taken where something is not said; raise ValueError where nothing trains."""
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise ValueError(
            "Nothing of this model trains, because all its weights are frozen: let some require gradients."
        )
    said = lengths_assumed(built, asked.batch)
    named = getattr(getattr(built, "config", None), "architectures", None) or []
    taken = type(body_of(built)).__name__
    if taken not in named:
        said.append(f"The configuration names {', '.join(named) or 'no class'}: {taken} is taken.")
    if run.engine != "NO" and asked.gpus == 1:
        said.append("One GPU shares nothing with others: gpus=4 (--gpus 4) says what each of four holds.")
    if isinstance(asked.model, nn.Module) and {"dtype", "attn_implementation"} & set(asked.plan["model"]):
        said.append("The module keeps the dtype and the attention that it has; the plan's are for loading one.")
    return said


def how_taken(run: Run, shares: Shares, machine: Machine | None) -> Step:
    """Return how a step of `run` is taken on a card, or on one of Ampere or newer where none is named."""
    checkpointing = run.checkpointing or {}
    return Step(
        autocast=getattr(torch, run.autocast) if run.autocast and run.engine != "DEEPSPEED" else None,
        checkpointing=run.checkpointing is not None,
        offload=bool(checkpointing.get("offload")),
        reentrant=bool(checkpointing.get("reentrant")),
        accumulating=run.accumulation > 1 and shares.wrap is None,
        flash=machine is None or machine.capability >= (8, 0) or machine.accelerator == "rocm",
        package=run.flash,
        wrap=shares.wrap,
        workspaces=workspaces(machine),
    )


def workspaces(machine: Machine | None) -> int:
    """Return the bytes of cuBLAS's workspaces of the forward and the backward thread."""
    return round(2 * workspace_mib(machine.capability if machine else (8, 0)) * 2**20)

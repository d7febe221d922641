"""The estimate: plan, model and batch -> the memory of one training step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.machine import Machine
from hf_efficient.memory.assemble import assemble
from hf_efficient.memory.extend import BETWEEN, Segment
from hf_efficient.memory.fit import judged
from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.later import evaluation
from hf_efficient.memory.optimizers import Update, check, update
from hf_efficient.memory.reading import Run, read
from hf_efficient.memory.results import GIB, PARTS, Batch, Estimate
from hf_efficient.memory.shares import Shares, counted, vocabulary, whole
from hf_efficient.memory.stacks import stacks
from hf_efficient.memory.step import Step
from hf_efficient.memory.timeline import Happening, moments, timeline
from hf_efficient.memory.whole import whole_step
from hf_efficient.memory.zero import zero
from hf_efficient.plan import Plan, require_plan

WORKSPACES = 2 * (4096 * 2 + 16 * 8) * 1024
"""cuBLAS's workspaces of the forward and the backward thread, 8.125 MiB each; torch.cuda's CUBLAS_WORKSPACE_CONFIG."""
ALWAYS = (
    "The model's outputs are let go before the backward pass, as Trainer does; a loop that keeps them needs the logits "
    "once more.",
    "Allocated bytes only: the caching allocator reserves more, and the CUDA context comes on top.",
)


def estimate(
    plan: Plan,
    model: Any,
    *,
    batch: Batch,
    machine: Machine | None = None,
    gpus: int = 1,
    capability: tuple[int, int] | None = None,
) -> Estimate:
    """Return the memory of one training step of `model` under `plan`, traced without data and without a GPU.

    `model`: a Hub id, a folder with a config.json, a configuration, or a module of yours, which stays as it is.
    `batch`: rows and lengths of one micro-batch on one GPU. `machine`: the card to fit; without it `cards` says which do.
    `gpus`: ranks; the figures are those of one. `capability`: of the card, where no machine is named.

    Raises ValueError for what cannot be built, a forward pass that depends on data, and impossible batches.
    """
    require_plan(plan)
    _check(batch, gpus)
    run = read(plan)
    check(run.optimizer["name"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by old names
        warnings.simplefilter("ignore", UserWarning)
        return _estimated(plan, run, model, batch, machine, gpus, capability)


def _check(batch: Batch, gpus: int) -> None:
    for name in ("size", "seq_len", "target_len", "eval_size", "eval_rows"):
        value = getattr(batch, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"{name}={value!r} is no number of rows or tokens, because one is the least: pass {name}=1."
            )
    if gpus < 1:
        raise ValueError(f"gpus={gpus} is no number of GPUs, because one is the least: pass gpus=1.")


def _estimated(
    plan: Plan,
    run: Run,
    model: Any,
    batch: Batch,
    machine: Machine | None,
    gpus: int,
    capability: tuple[int, int] | None,
) -> Estimate:
    built = assemble(plan, run, model)
    name = getattr(getattr(built, "config", None), "name_or_path", "") or type(built).__name__
    shares = share_out(built, run, gpus)
    params, trainable = counted(built)
    capability = machine.capability if machine else capability
    how = Step(
        autocast=getattr(torch, run.autocast) if run.autocast and run.engine != "DEEPSPEED" else None,
        checkpointing=run.checkpointing is not None,
        offload=bool(run.checkpointing and run.checkpointing["offload"]),
        reentrant=bool(run.checkpointing and run.checkpointing["reentrant"]),
        accumulating=run.accumulation > 1 and shares.wrap is None,
        flash=not capability or capability >= (8, 0) or machine is not None and machine.accelerator == "rocm",
        package=run.flash,
        wrap=shares.wrap,
    )
    spare = copy.deepcopy(built) if batch.eval_size else None
    depth = [stack.layers for stack in stacks(built)]
    vocabulary_size = vocabulary(built)
    cut = whole_step(built, lambda m: batch_for(m, batch), how)
    ended = updated(run, shares)
    standing = _standing(shares, ended, how, cut)
    happenings = [*_happenings(cut, depth), *_ending(cut, ended, shares)]
    made = timeline(happenings, standing, vocabulary_size)
    found = Estimate(
        model=name if isinstance(model, (nn.Module,)) or not isinstance(model, str) else model,
        plan=" ".join(trick.name for trick in plan.tricks),
        batch=batch,
        params=params,
        trainable_params=trainable,
        allocated_gib=made.live()[made.peak] / GIB,
        breakdown={part: made.parts[part][made.peak] / GIB for part in PARTS},
        peak_at=made.label,
        host_gib=(shares.host + ended.host + sum(how.host)) / GIB,
        moments=moments(made),
        assumptions=(*ALWAYS, *run.assumptions, *shares.assumptions, *ended.notes),
        timeline=made,
    )
    found = replace(found, moments={**found.moments, **_later(run, batch, spare, standing, how)})
    return judged(found, machine)


def share_out(model: nn.Module, run: Run, gpus: int) -> Shares:
    """Return what one of `gpus` ranks holds; under DeepSpeed `model` is put into 16 bits, as its engine does."""
    if run.engine == "DEEPSPEED":
        if run.autocast:
            model.to(getattr(torch, run.autocast))
        return zero(model, run.zero, gpus)
    if run.engine == "FSDP":
        return fsdp(model, run.fsdp, run, gpus)
    return whole(model, gpus)


def updated(run: Run, shares: Shares) -> Update:
    """Return what clipping and the update of one rank's weights take."""
    keywords = {key: value for key, value in run.optimizer.items() if key != "name"}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    if shares.optimizer is not None or not shares.updated:
        return Update(shares.optimizer or 0, 0, [], ())
    return update(run.optimizer["name"], shares.updated, mode=mode, max_grad_norm=run.max_grad_norm, **keywords)


def _standing(shares: Shares, ended: Update, how: Step, cut: list[Segment]) -> dict[str, int]:
    """Return the bytes that are there all through the step, by part."""
    there = sum(w.numel * w.dtype.itemsize for w in shares.updated) if how.accumulating else 0
    return {
        "weights": shares.weights,
        "optimizer": ended.state,
        "gradients": there,
        "temporary": shares.buffers + WORKSPACES,
    }


def _happenings(cut: list[Segment], depth: list[int]) -> Iterator[Happening]:
    for segment in cut:
        inside = segment.unit != BETWEEN
        for event in segment.events:
            yield Happening(event, segment.unit if inside else -1, depth[segment.stack] if inside else 0)


def _ending(cut: list[Segment], ended: Update, shares: Shares) -> Iterator[Happening]:
    """Yield clipping and the update, behind what the passes left: their storages get keys of their own."""
    offset = max((event.key for segment in cut for event in segment.events), default=0) + 1
    for event in ended.events:
        yield Happening(event._replace(key=event.key + offset), -1, 0)
    last = offset + max((event.key for event in ended.events), default=0) + 1
    for place, size in enumerate(shares.passing.values()):
        from hf_efficient.memory.record import Event

        yield Happening(Event(last + place, size, "optimizer"), -1, 0)
        yield Happening(Event(last + place, -size, "optimizer"), -1, 0)


def _later(run: Run, batch: Batch, spare: nn.Module | None, standing: dict[str, int], how: Step) -> dict[str, float]:
    """Return the peaks of what does not happen in a step: evaluation, and loading a checkpoint to go on.

    Trainer reads a checkpoint to the host; the state is on the card once (`Trainer._load_optimizer_and_scheduler`).
    """
    states = sum(standing.values()) - standing["gradients"]
    found = {"resume": states / GIB}
    if spare is not None:
        found["evaluation"] = (states + evaluation(spare, run, batch, how)) / GIB
    return found

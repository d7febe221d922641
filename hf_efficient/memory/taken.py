"""One step from its first storage to its last: the passes, clipping and the update, beside what stands all through."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory import lengths
from hf_efficient.memory.demand import Demand, Facts, demand
from hf_efficient.memory.exchange import exchange_of
from hf_efficient.memory.extend import BETWEEN, Segment
from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.optimizers import Update, update
from hf_efficient.memory.reading import Run
from hf_efficient.memory.record import Event
from hf_efficient.memory.reserve import Reserve, reserve
from hf_efficient.memory.results import Batch, Timeline
from hf_efficient.memory.shares import Shares, vocabulary, whole
from hf_efficient.memory.stacks import stacks
from hf_efficient.memory.step import Step
from hf_efficient.memory.timeline import Happening, timeline
from hf_efficient.memory.traffic import traffic
from hf_efficient.memory.whole import whole_step
from hf_efficient.memory.work import work
from hf_efficient.memory.zero import zero


class Taken(NamedTuple):
    """A step that was taken."""

    timeline: Timeline
    update: Update
    standing: dict[str, int]
    """Bytes that are there all through it, by part."""
    host: int
    """Bytes that it sends to host memory."""
    reserve: Reserve
    demand: Demand


def take(built: nn.Module, run: Run, shares: Shares, *, batch: Batch, how: Step, gpus: int = 1) -> Taken:
    """Take a step with `built`, on meta tensors, of which each of `gpus` ranks holds `shares`."""

    def passes(model: nn.Module, batch: Batch) -> list[Segment]:
        return whole_step(model, lambda model: batch_for(model, batch, packed=run.packed), how)

    short = None
    if lengths.varies(batch) and not run.packed:
        with suppress(ValueError):  # a model may not compute on rows so short; the long ones decide
            short = passes(copy.deepcopy(built), lengths.shorter(batch))
    facts = facts_of(built, run, gpus=gpus, tokens=batch.size * (batch.seq_len or 1))
    return summed(passes(built, batch), run, shares, how=how, facts=facts, short=short)


def facts_of(model: nn.Module, run: Run, *, gpus: int, tokens: int) -> Facts:
    """Return what `summed` must know of a model that is put into shares already."""
    depth = [stack.layers for stack in stacks(model)]
    return Facts(depth, vocabulary(model), traffic(exchange_of(model, run, ranks=gpus)), tokens, gpus)


def summed(
    cut: list[Segment], run: Run, shares: Shares, *, how: Step, facts: Facts, short: list[Segment] | None = None
) -> Taken:
    """Return what passes and update take together; `short`: the passes of a shorter batch, where batches differ."""
    ended = updated(run, shares)
    there = standing(shares, ended, how)
    made = timeline([*happenings(cut, facts.depth), *ending(cut, ended, shares)], there, facts.words)
    held = reserve(cut, ended, shares, accumulating=how.accumulating, workspaces=how.workspaces, short=short)
    held = held._replace(expandable=run.expandable)
    sent = sum(event.host for segment in cut for event in segment.events)
    asked = demand(work(cut), run, ended, shares, facts=facts, sent=sent)
    return Taken(made, ended, there, sent, held, asked)


def share_out(model: nn.Module, run: Run, gpus: int) -> Shares:
    """Return what one of `gpus` ranks holds; under DeepSpeed `model` is put into 16 bits, as its engine does."""
    if run.engine == "DEEPSPEED":
        if run.autocast:
            model.to(getattr(torch, run.autocast))
        return zero(model, run.zero, gpus, accumulating=run.accumulation > 1)
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


def standing(shares: Shares, ended: Update, how: Step) -> dict[str, int]:
    """Return the bytes that are there all through the step, by part."""
    there = sum(w.numel * w.dtype.itemsize for w in shares.updated) if how.accumulating else 0
    return {
        "weights": shares.weights,
        "optimizer": ended.state,
        "gradients": there + shares.between,
        "temporary": shares.buffers + how.workspaces,
    }


def happenings(cut: list[Segment], depth: list[int]) -> Iterator[Happening]:
    """Yield the events of the passes; `depth`: layers of each stack."""
    for segment in cut:
        inside = segment.unit != BETWEEN
        for event in segment.events:
            yield Happening(event, segment.unit if inside else -1, depth[segment.stack] if inside else 0)


def ending(cut: list[Segment], ended: Update, shares: Shares) -> Iterator[Happening]:
    """Yield clipping and the update, behind what the passes left: their storages get keys of their own."""
    offset = max((event.key for segment in cut for event in segment.events), default=0) + 1
    for event in ended.events:
        yield Happening(event._replace(key=event.key + offset), -1, 0)
    last = offset + max((event.key for event in ended.events), default=0) + 2
    yield Happening(Event(last - 1, 0, "optimizer"), -1, 0)  # so that an update which takes nothing is a moment too
    for sign in (1, -1):  # what is made in passing is there at once
        for place, size in enumerate(shares.passing.values()):
            yield Happening(Event(last + place, sign * size, "optimizer"), -1, 0)

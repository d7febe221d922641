"""What an update of the weights asks of a card, whichever it is: kernels, bytes and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hf_efficient.memory.optimizers import Update
from hf_efficient.memory.reading import Run
from hf_efficient.memory.shares import Shares
from hf_efficient.memory.traffic import Traffic
from hf_efficient.memory.work import Work

CLIPPED = 3
"""Times that clipping goes through the gradients: it reads them for their norm, and reads and writes them to scale."""
UPDATED = 3
"""Times that an update in one kernel goes through the weights: it reads gradient and weight, and writes the weight."""
DEEPSPEED = 40
"""Bytes that DeepSpeed's update moves for a number: its gradient to float32 (6), Adam (28), its weight back (6)."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One update of the weights by one GPU."""

    work: Work
    """Kernels of one micro-batch."""
    micro_batches: int
    tokens: int
    """Tokens, or rows of what has none, of one micro-batch."""
    update: int
    """Bytes that clipping and the update move on the card."""
    traffic: Traffic
    """What goes to other GPUs and to the host."""
    on_host: int = 0
    """Numbers that all ranks of a computer update in host memory."""
    tf32: bool = False
    """Products of float32 are computed in TF32."""
    compiled: bool = False
    """torch.compile joins kernels that only move data."""


class Facts(NamedTuple):
    """What must be known of a model before it is traced, since a trace uses it up."""

    depth: list[int]
    """Layers of each stack."""
    words: int | None
    """Last dimension of the logits."""
    traffic: Traffic
    tokens: int
    """Of one micro-batch."""
    gpus: int = 1


def demand(work: Work, run: Run, ended: Update, shares: Shares, *, facts: Facts, sent: int) -> Demand:
    """Return what an update asks for. `sent`: bytes of activations that a micro-batch leaves on the host."""
    there_and_back = 2 * sent * run.accumulation
    whole = facts.gpus if run.engine == "FSDP" else 1  # under FSDP `updated` is the part of one rank
    away = bool(shares.host and shares.optimizer == 0)
    on_host = whole * sum(weight.numel for weight in shares.updated) if away else 0
    return Demand(
        work=work,
        micro_batches=run.accumulation,
        tokens=facts.tokens,
        update=0 if on_host else _update(run, ended, shares, facts.gpus),
        traffic=facts.traffic._replace(host=facts.traffic.host + there_and_back),
        on_host=on_host,
        tf32=run.tf32,
        compiled=run.compiled,
    )


def _update(run: Run, ended: Update, shares: Shares, gpus: int) -> int:
    """Return the bytes of clipping and update: as traced where all tensors go at once, else of one kernel each."""
    numbers = sum(weight.numel for weight in shares.updated)
    weights = sum(weight.numel * weight.dtype.itemsize for weight in shares.updated)
    clipped = CLIPPED * weights if run.max_grad_norm else 0
    if run.engine == "DEEPSPEED":  # each rank clips and updates its part, from stage 1 on
        return (clipped + DEEPSPEED * numbers) // (gpus if run.zero.get("stage") else 1)
    traced = sum(event.moved for event in ended.events if event.phase == "optimizer")
    return clipped + max(traced, UPDATED * weights + 2 * (ended.state + ended.host))

"""What an update of the weights asks of a card, whichever it is: kernels, bytes and messages."""

from __future__ import annotations

from dataclasses import dataclass

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


def demand(work: Work, run: Run, ended: Update, shares: Shares, *, tokens: int, traffic: Traffic, sent: int) -> Demand:
    """Return what an update asks for. `sent`: bytes of activations that a micro-batch leaves on the host."""
    there_and_back = 2 * sent * run.accumulation
    on_host = sum(weight.numel for weight in shares.updated) if shares.host and shares.optimizer == 0 else 0
    return Demand(
        work=work,
        micro_batches=run.accumulation,
        tokens=tokens,
        update=0 if on_host else _update(run, ended, shares),
        traffic=traffic._replace(host=traffic.host + there_and_back),
        on_host=on_host,
        tf32=run.tf32,
        compiled=run.compiled,
    )


def _update(run: Run, ended: Update, shares: Shares) -> int:
    """Return the bytes of clipping and update: as traced where all tensors go at once, else of one kernel each."""
    numbers = sum(weight.numel for weight in shares.updated)
    weights = sum(weight.numel * weight.dtype.itemsize for weight in shares.updated)
    clipped = CLIPPED * weights if run.max_grad_norm else 0
    if shares.optimizer is not None:
        return clipped + DEEPSPEED * numbers
    traced = sum(event.moved for event in ended.events if event.phase == "optimizer")
    return clipped + max(traced, UPDATED * weights + 2 * (ended.state + ended.host))

"""What one rank sends in an update: gradients and weights to the other GPUs, and what goes to host memory and back.

Collectives are counted as rings: of n ranks each sends (n - 1)/n of the bytes to gather or to reduce and scatter them,
and twice that to all-reduce. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DDP_BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces at once: `bucket_cap_mb` of torch.nn.parallel.DistributedDataParallel."""
MASTER = 4
"""Bytes of a number in float32, in which DeepSpeed's gradients go to the optimizer in host memory."""
UPDATE_BYTES = 28
"""Bytes of host memory that Adam moves for a number: reads weight, gradient and two moments in float32, writes three.

Source: Step_AVX in csrc/includes/cpu_adam.h of deepspeed 0.19.8.
"""
HOST_UPDATE_GB_S = 50.0
"""1e9 bytes/s of host memory at which the ranks of one computer update together, with DeepSpeedCPUAdam.

Published, at UPDATE_BYTES: 40 (11.6e9 numbers in 8.2 s, deepspeedai/DeepSpeed PR 735), 51 (72.7e9 on four computers
with A100 in about 10 s, issue 6834), 77 (106e9 on four with H100 in 9.6 s, under a profiler and with another Adam,
THUDM/slime issue 1139). Few cores are far slower: 1.35e9 in 22 s on a Xeon Silver 4210R (DeepSpeed issue 1635).
"""


class Traffic(NamedTuple):
    """What one rank sends for one update, all its micro-batches together."""

    link: float
    """Bytes to the other GPUs."""
    host: float
    """Bytes over the link to the host, both directions together."""
    calls: int
    """Collectives, each of which waits for all ranks."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What an engine exchanges. Bytes are those of the dtype in which it does: 2 each under mixed precision."""

    engine: str = "NO"
    """NO (one GPU, or DDP), DEEPSPEED or FSDP."""
    stage: int = 0
    """Of DeepSpeed's ZeRO."""
    ranks: int = 1
    accumulation: int = 1
    """Micro-batches in an update."""
    trained: int
    """Numbers that train."""
    gradients: int
    """Bytes of all their gradients."""
    weights: int = 0
    """Bytes of all weights that are gathered to compute, frozen ones too."""
    kept: int = 0
    """Bytes of those that stay gathered from forward to backward."""
    passes: int = 2
    """How often a micro-batch gathers the others. 3: reentrant checkpointing around FSDP1's layers."""
    scatter: bool = True
    """Each rank gets its share of the reduced gradients; else all get all."""
    offload: str | None = None
    """`optimizer` updates in host memory, `all` keeps the weights there too."""
    stored: int = 0
    """Bytes of one rank's weights in host memory, with `all`."""
    down: int = 0
    """Bytes of one rank's gradients as the optimizer in host memory gets them."""
    units: int = 0
    """Groups of weights that are gathered at once."""
    reductions: int = 1
    """Groups of gradients that are reduced at once."""

    @property
    def share(self) -> float:
        """Return how much of what all hold a rank sends to gather it or to scatter it."""
        return (self.ranks - 1) / self.ranks

    @property
    def gathers(self) -> float:
        """Return how often all weights are gathered in a micro-batch."""
        return self.passes - (self.passes - 1) * self.kept / self.weights if self.weights else 0.0


def traffic(exchange: Exchange) -> Traffic:
    """Return what one rank sends for one update; nothing over the link where there is one GPU.

    Checkpointed inputs that go to the host are not in it: the trace knows them (`Event.host`), and they go both ways.
    Paged optimizer states stay on the card while there is room. Not modelled: hybrid sharding, ZeRO++ and hpZ, and
    FSDP1's SHARD_GRAD_OP, which under no_sync gathers once for an update (_should_free_in_backward in
    torch/distributed/fsdp/_runtime_utils.py). `exchange_of` fills an Exchange from a model and a plan.
    """
    link, calls = {"NO": _ddp, "DEEPSPEED": _zero, "FSDP": _fsdp}[exchange.engine](exchange)
    several = exchange.ranks > 1
    return Traffic(link if several else 0.0, _host(exchange), calls if several else 0)


def _reduced(exchange: Exchange) -> float:
    """Return what a rank sends to reduce all gradients once."""
    return exchange.gradients * exchange.share * (1 if exchange.scatter else 2)


def _ddp(exchange: Exchange) -> tuple[float, int]:
    """All-reduce once for an update: accelerate's no_sync leaves out the micro-batches before the last."""
    return 2 * exchange.gradients * exchange.share, exchange.reductions


def _zero(exchange: Exchange) -> tuple[float, int]:
    """Reduce where the engine does, and gather: the updated weights once, or in stage 3 every weight that computes.

    Stages 2 and 3 reduce in every micro-batch, 0 and 1 in the last: allreduce_gradients in deepspeed/runtime/engine.py
    of 0.19.8. Weights are gathered at the end of step() in stage_1_and_2.py, and by fetch_sub_module of
    partitioned_param_coordinator.py; a recomputed layer keeps them for its gradient, within stage3_max_reuse_distance.
    """
    times = exchange.accumulation if exchange.stage >= 2 else 1
    link, calls = times * _reduced(exchange), times * exchange.reductions
    if exchange.stage == 3:
        gathered = exchange.accumulation * exchange.gathers * exchange.weights * exchange.share
        return link + gathered, calls + exchange.accumulation * exchange.passes * exchange.units
    after = exchange.gradients * exchange.share if exchange.stage else 0.0
    return link + after, calls + (1 if exchange.stage else 0)


def _fsdp(exchange: Exchange) -> tuple[float, int]:
    """Gather in every micro-batch, forward and backward; reduce and scatter in the last one of an update.

    FSDP2 gathers nothing for a repeated forward pass, since the backward pass has begun (`is_bw` in post_forward), and
    reduces nothing while `reduce_grads` is off: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py of 2.13.
    """
    gathered = exchange.accumulation * exchange.gathers * exchange.weights * exchange.share
    calls = exchange.accumulation * exchange.passes * exchange.units + exchange.reductions
    return gathered + _reduced(exchange), calls


def _host(exchange: Exchange) -> float:
    """Return the bytes that go to host memory and back, both directions together.

    DeepSpeed: gradients go down in float32 in the last micro-batch and weights come up in 16 bits after the update
    (_offload_grad_partition_at_boundary in stage3.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu and step() in
    stage_1_and_2.py of 0.19.8). With accumulation gradients in 16 bits come and go besides: in stages 1 and 2 as
    async_accumulate_grad_in_cpu_via_gpu adds to them, in stage 3 always (partition_grads). FSDP2: a rank's part goes up
    as it is stored, for each gathering, and its gradients come down once reduced (all_gather_inputs in _fsdp_param.py).
    """
    if exchange.offload is None:
        return 0.0
    part, micro = exchange.gradients / exchange.ranks, exchange.accumulation
    up = part if exchange.offload == "optimizer" else micro * exchange.gathers * exchange.stored
    if exchange.engine == "FSDP":
        return up + exchange.down
    added = {1: min(micro - 1, 1) * 2, 2: 2 * micro - 1 if micro > 1 else 0, 3: 2 * micro}.get(exchange.stage, 0)
    return up + added * part + exchange.down


def host_update_s(numbers: int, *, gb_s: float = HOST_UPDATE_GB_S) -> float:
    """Return the seconds in which Adam updates so many numbers in host memory, whose bandwidth bounds it.

    `numbers`: of all ranks of one computer together, which share its memory; `gb_s`: 1e9 bytes/s of them together.
    The cards wait for it: DeepSpeed and FSDP update after the backward pass. Source: UPDATE_BYTES and HOST_UPDATE_GB_S.
    """
    return numbers * UPDATE_BYTES / (gb_s * 1e9)

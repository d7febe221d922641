"""Batches that are ready before the GPU asks."""

from __future__ import annotations

from typing import Annotated, Any

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def data_loading(
    workers: Annotated[int, AtLeast(0)] = 2,
    prefetch: Annotated[int, AtLeast(1)] = 2,
    pinned: bool = True,
    persistent: bool = True,
) -> Trick:
    """Prepare batches in `workers` processes ahead of time, in page-locked memory, so that the GPU does not wait.

    `prefetch` batches per worker lie ready; `pinned` memory lets the copy to the GPU overlap with computing;
    `persistent` workers survive the end of an epoch. Use it always on a GPU: raise workers while the GPU waits, to
    the number of CPU cores per GPU at most.

    Not for data that are in memory already tokenised and collate in no time: workers=0 is then as fast, and with
    0 workers there is nothing to prefetch and nobody to persist, so neither is set (the stack refuses the pairs).

    The same batches arrive in the same order. A worker holds a copy of what its dataset loads lazily, so host memory
    grows with workers.

    Published: no figure in our sources; it can win the time that the GPU waits for data, and no more.
    """
    ahead: dict[str, Any] = {"prefetch_factor": prefetch, "persistent_workers": persistent} if workers else {}
    return Trick(
        family="data",
        saves="the time that the GPU waits for its next batch",
        costs=f"{workers} processes and {workers * prefetch} batches of host memory",
        numerics="exact",
        shows=("workers",) if workers else ("pinned",),
        trainer={
            "dataloader_num_workers": workers,
            "dataloader_pin_memory": pinned,
            **{f"dataloader_{key}": value for key, value in ahead.items()},
        },
        dataloader={"num_workers": workers, "pin_memory": pinned, **ahead},
    )

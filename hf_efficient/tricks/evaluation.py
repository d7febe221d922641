"""Evaluation that fits where training fits."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def evaluation(per_device: Annotated[int, AtLeast(1)] = 4, host_every: Annotated[int, AtLeast(1)] = 1) -> Trick:
    """Evaluate `per_device` rows at a time and move their logits to the host, so that evaluation fits on the GPU.

    One row's logits take length x vocabulary x 4 bytes: 1.2 GB for 2048 tokens of a vocabulary of 152k. Trainer with
    `compute_metrics` otherwise keeps those of the whole evaluation set on the GPU until the end; `host_every` batches
    stay there now. Use it when evaluation runs out of memory and training does not.

    Not for encoders with a few labels, whose logits are small: a larger batch is faster there. Host memory still
    holds all logits: `preprocess_logits_for_metrics`, which reduces them on the GPU, is the better cure where you can.
    Without `compute_metrics` Trainer keeps no logits, nor does the loop recipe; only the batch counts then.

    Published: no figure in our sources; the bytes above are arithmetic.
    """
    return Trick(
        family="evaluation",
        saves="the logits of all evaluation rows but the last batches, on the GPU",
        costs="a copy to the host, and an emptied cache, every few batches",
        numerics="exact",
        shows=("eval_rows",),
        trainer={"per_device_eval_batch_size": per_device, "eval_accumulation_steps": host_every},
        loop={"per_device_eval_batch_size": per_device},
    )

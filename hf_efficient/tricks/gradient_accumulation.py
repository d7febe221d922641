"""One update out of several small batches."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.needs import ITEMS_COUNTED
from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def gradient_accumulation(steps: Annotated[int, AtLeast(1)] = 8) -> Trick:
    """Train with a batch that does not fit, by adding up the gradients of `steps` smaller ones.

    Only the small batch is in memory; the update sees them all. Use it when the effective batch that you want is out
    of memory. With `batch_size(per_device, effective)` you need not name it: the steps are computed.

    Not when the whole batch fits: smaller matmuls fill the GPU less, and each micro-batch pays the kernel launches.

    It is exact where each micro-batch counts by its share of the window's items, the labels, rows or elements that the
    loss is the mean over; a mean of means is not. Trainer does so for most causal language models and no other: it
    multiplies loss and gradient by the steps for heads that drop `num_items_in_batch` (most classification, masked-LM,
    token and encoder-decoder heads; 4.0 times at 4 steps for BERT), and counts a row's first label for GPT-2. Call
    `exact_accumulation(trainer)` before `trainer.train()`; `windows` does it in a hand-written loop.

    It is another training, and verify says so, for losses that are no mean over items: in-batch contrastive ones, a
    mixture of experts with its balancing loss (0.4 % off at 8 steps), batch norm.

    Published: no figure in our sources; what it costs depends on how full the micro-batch leaves the GPU.
    """
    return Trick(
        family="accumulation",
        saves=f"the batch in memory is 1/{steps} of the batch that an update sees",
        costs="smaller matmuls fill the GPU less",
        numerics="exact",
        shows=("forwards",),
        trainer={"gradient_accumulation_steps": steps},
        accelerator={"gradient_accumulation_steps": steps},
        remarks=ITEMS_COUNTED if steps > 1 else {},
    )

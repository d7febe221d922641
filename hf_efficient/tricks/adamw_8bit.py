"""AdamW with its state in 8 bits."""

from __future__ import annotations

from hf_efficient.needs import BITSANDBYTES
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def adamw_8bit(*, paged: bool = False) -> Trick:
    """Keep both moments of AdamW in 8 bits with a scale per block: 2 bytes per parameter instead of 8.

    bitsandbytes' AdamW; tensors below 4,096 elements and embeddings stay in 32 bits, as the authors advise. Use it
    when weights, gradients and optimizer state together are what does not fit: it frees 6 bytes per parameter.

    `paged=True` puts the state of tensors from 100,000 elements on into CUDA's unified memory: when a long batch fills
    the card, state moves to the host's memory and back instead of the run ending out of memory. It makes no room by
    itself and costs nothing while all fits. On a CPU there is nothing to page: bitsandbytes warns and does not.

    Not for models of mostly embeddings, where it frees little, and not under fsdp, whose weights it cannot update.
    Under zero each GPU keeps its share in 8 bits, embeddings included.

    Published: memory -12 to -32 %; speed -6 to +4 %.
    """
    name = "paged_adamw_8bit" if paged else "adamw_bnb_8bit"
    return Trick(
        family="optimizer",
        saves="6 of AdamW's 8 bytes of state per parameter" + (", and moves the rest out when the GPU is full" * paged),
        costs="moments rounded to 8 bits: another run of the same quality" + ("; slow while it pages" * paged),
        numerics="different",
        shows=("paged",) if paged else ("optimizer",),
        needs=(BITSANDBYTES,),
        trainer={"optim": name},
        optimizer={"name": name},
    )

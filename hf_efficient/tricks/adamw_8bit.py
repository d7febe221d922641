"""AdamW with its state in 8 bits."""

from __future__ import annotations

from hf_efficient.needs import BITSANDBYTES
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def adamw_8bit() -> Trick:
    """Keep both moments of AdamW in 8 bits with a scale per block: 2 bytes per parameter instead of 8.

    bitsandbytes' AdamW; tensors below 4,096 elements and embeddings stay in 32 bits, as the authors advise. Use it
    when weights, gradients and optimizer state together are what does not fit: it frees 6 bytes per parameter.

    Not for models of mostly embeddings, where it frees little, and not under ZeRO, which shards the state anyway.

    Published: memory -12 to -32 %; speed -6 to +4 %.
    """
    return Trick(
        family="optimizer",
        saves="6 of AdamW's 8 bytes of state per parameter",
        costs="moments rounded to 8 bits: another run of the same quality",
        numerics="different",
        needs=(BITSANDBYTES,),
        trainer={"optim": "adamw_bnb_8bit"},
        optimizer={"name": "adamw_bnb_8bit"},
    )

"""An optimizer whose state is a row and a column per matrix."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def adafactor() -> Trick:
    """Keep a row and a column of second moments per matrix instead of two whole copies of it.

    Use it when the optimizer state does not fit and bitsandbytes is no choice, or to go on with a model that was
    trained with it (T5). It runs with your learning rate, without its own relative steps and without first moments.

    Not as a drop-in for AdamW: it is another optimizer, with another best learning rate and often a slower step. Not
    under zero or fsdp, which have no whole matrices for it.

    Published: memory -18 %; speed -10 to -24 %.
    """
    return Trick(
        family="optimizer",
        saves="nearly all optimizer state (8 bytes per parameter under AdamW)",
        costs="another training; a slower step",
        numerics="different",
        shows=("optimizer",),
        trainer={"optim": "adafactor"},
        optimizer={"name": "adafactor"},
    )

"""A limit on the norm of the gradient."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def gradient_clipping(max_norm: Annotated[float, AtLeast(0)] = 1.0) -> Trick:
    """Scale the gradient down when its norm exceeds `max_norm`, and keep its direction.

    The norm is the L2 norm over all parameters, taken once per update, after accumulation and after fp16's loss scale
    is divided out. Use it always for transformers: one bad batch otherwise undoes hours. `gradient_clipping(0)` says
    that nothing is to be clipped, through both doors.

    Not as a cure for a loss that explodes at every step: lower the learning rate or find the bad rows.

    Trainer clips at 1.0 when nobody says anything, a hand-written loop does not clip; named, both do the same.

    Published: no figure in our sources; it reads the gradients once per update.
    """
    return Trick(
        family="clipping",
        saves="runs that one bad batch would ruin",
        costs="one pass over the gradients per update",
        # Part of the training, not an approximation of it: the same through every door and engine.
        numerics="different",
        shows=("clipped",),
        trainer={"max_grad_norm": float(max_norm)},
        loop={"max_grad_norm": float(max_norm)},
    )

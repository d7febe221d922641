"""Lion with its state in 8 bits."""

from __future__ import annotations

from hf_efficient.needs import BITSANDBYTES
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick

BETAS = (0.9, 0.99)
"""The authors' own. Trainer would hand Lion the betas of Adam, with a momentum ten times as long."""


@spelled
def lion_8bit(*, paged: bool = False) -> Trick:
    """Keep one momentum in 8 bits and step by its sign: 1 byte of state per parameter instead of AdamW's 8.

    bitsandbytes' Lion; tensors below 4,096 elements and embeddings stay in 32 bits. Use it when adamw_8bit does not
    fit and you can afford to look for the learning rate anew, best with large batches: the sign makes every update
    equally long, so noise in the gradient is not damped. `paged=True` is that of adamw_8bit.

    Take a learning rate 3 to 10 times smaller than AdamW's and a weight decay 3 to 10 times larger, so that their
    product stays: that is the authors' advice, and the trick changes neither.

    Not with AdamW's learning rate, not as the next leg of a run that AdamW began, and not under fsdp; zero is as with
    adamw_8bit.

    Published: no figure of 8-bit Lion in our sources; of Lion, its authors report up to 5 times less compute to
    pre-train on JFT and up to 2.3 times less for diffusion models (arXiv 2302.06675).
    """
    name = "paged_lion_8bit" if paged else "lion_8bit"
    return Trick(
        family="optimizer",
        saves="7 of AdamW's 8 bytes of state per parameter" + (", and moves the rest out when the GPU is full" * paged),
        costs="another training: a learning rate 3 to 10 times smaller" + ("; slow while it pages" * paged),
        numerics="different",
        shows=("paged",) if paged else ("optimizer",),
        needs=(BITSANDBYTES,),
        trainer={"optim": name, "adam_beta1": BETAS[0], "adam_beta2": BETAS[1]},
        optimizer={"name": name, "betas": BETAS},
    )

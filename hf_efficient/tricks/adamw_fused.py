"""AdamW in one kernel."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def adamw_fused() -> Trick:
    """Update all parameters with torch's fused AdamW: one kernel instead of a dozen per tensor.

    The same mathematics as AdamW, 8 bytes of state per parameter. Use it whenever the state fits.

    Not when the optimizer state is what does not fit: take adamw_8bit (2 bytes), adafactor (next to none) or zero.

    What became of apex: NVIDIA's `apex.optimizers.FusedAdam` (`optim="adamw_apex_fused"`) was the fast one before
    torch had its own; it needs a build from source, and transformers 5 knows the name no more. torch's fused AdamW is
    the same idea without the build. transformers' own `adamw_hf` is gone as well.

    Published: no figure in our sources; torch's documentation ranks fused over foreach over a loop per tensor.
    """
    return Trick(
        family="optimizer",
        saves="time of the optimizer step, and the temporaries of foreach",
        costs="nothing",
        numerics="exact",
        shows=("optimizer",),
        trainer={"optim": "adamw_torch_fused"},
        optimizer={"name": "adamw_torch_fused"},
    )

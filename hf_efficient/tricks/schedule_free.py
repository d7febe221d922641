"""AdamW without a schedule."""

from __future__ import annotations

from typing import Annotated, Any

from hf_efficient.needs import SCHEDULEFREE
from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick


@spelled
def schedule_free(warmup_steps: Annotated[int, AtLeast(0)] | None = None) -> Trick:
    """Train with AdamW at a constant rate and evaluate the average of its weights: no schedule, no last update to name.

    8 bytes of state per parameter, as AdamW. Use it when you do not know how long you will train, or want a good model
    at any moment: stopping early costs nothing. Learning rates of 1 to 10 times AdamW's are the authors' range.

    Warm-up is the optimizer's own, in whole updates, and the authors recommend one: `warmup_steps` here, or the field
    of that name, which counts where you leave it out here. The schedule is set to `constant`; yours wins.

    A hand-written loop calls `optimizer.train()` before it trains, and `optimizer.eval()` before it evaluates and
    before it saves; accelerate's optimizers all have both. Trainer does so for evaluations: save after one, since a
    checkpoint between two holds the weights of training and not their average.

    Not to save memory, not without tuning learning rate and weight decay, and not under zero, where the average would
    never reach the model (under fsdp it does, but no checkpoint can be resumed). Batch norm needs the authors' extra
    pass.

    Published: no figure for memory, which is AdamW's; it won the self-tuning track of MLCommons' AlgoPerf 2024
    (arXiv 2405.15682).
    """
    schedule: dict[str, Any] = {"lr_scheduler_type": "constant"}
    if warmup_steps is not None:
        schedule["warmup_steps"] = warmup_steps
    return Trick(
        family="optimizer",
        saves="the search for a schedule, and the updates past the point where you would have stopped",
        costs="another training; the loop says when it trains and when it evaluates",
        numerics="different",
        shows=("optimizer",),
        needs=(SCHEDULEFREE,),
        trainer={"optim": "schedule_free_adamw", **schedule},
        optimizer={"name": "schedule_free_adamw"},
        loop=schedule,
        remarks={
            "optimizer": "Call optimizer.train() before training, optimizer.eval() before evaluating and before saving."
        },
    )

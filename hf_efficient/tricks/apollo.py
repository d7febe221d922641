"""An optimizer that learns its step sizes in a random subspace."""

from __future__ import annotations

from typing import Annotated, Literal

from hf_efficient.needs import APOLLO_TORCH
from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick

BLOCKS = r".*\.\d+\..*"
"""Modules inside the numbered blocks. A head of few outputs would grow to `rank` rows, so heads stay outside."""


@spelled
def apollo(
    rank: Annotated[int, AtLeast(1)] = 256,
    *,
    scale: Annotated[float, AtLeast(0.01)] = 1.0,
    scale_type: Literal["channel", "tensor"] = "channel",
    update_proj_gap: Annotated[int, AtLeast(1)] = 200,
) -> Trick:
    """Keep AdamW's moments of a random projection of each gradient, to scale the raw gradient with: APOLLO.

    A linear layer of sides d <= D has 8 x rank / d bytes of moments per parameter and 4 x rank / D of projection: at
    the default rank and 4,096 x 4,096 that is 0.75 instead of 8. Embeddings, heads and norms have all 8.

    Use it to train all weights of a language model of 1B parameters or more on a small card; `rank` is 256 for 1B and
    7B as the authors advise, and at most a quarter of the smaller side. `apollo(1, scale=128.0, scale_type='tensor')`
    is their APOLLO-Mini, with next to no state. For fine-tuning with a low rank they take `scale` = side / rank.
    The projection is drawn anew every `update_proj_gap` updates; there is no SVD.

    Not where a side is below the rank: the state grows beyond AdamW's. Not with weight decay, which transformers does
    not hand to it, nor with GPT-2, whose layers are no nn.Linear, nor under zero or fsdp. The package apollo-torch is
    licensed CC BY-NC: not for commercial use. To resume from a checkpoint, first allow torch to load the projections in
    its state: `torch.serialization.add_safe_globals([apollo_torch.random_projector.GradientProjector])`.

    Published: pre-training LLaMA-7B on 8 A100-80GB, 3 times AdamW's throughput through batches 4 times as large;
    LLaMA-13B under plain data parallelism on A100-80GB (arXiv 2412.05270).
    """
    arguments = {
        "rank": rank,
        "proj": "random",
        "scale": float(scale),
        "scale_type": scale_type,
        "update_proj_gap": update_proj_gap,
    }
    text = ",".join(f"{key}={value}" for key, value in arguments.items())
    return Trick(
        family="optimizer",
        saves="most of AdamW's 8 bytes of state per parameter, in linear layers wider than the rank",
        costs="another training, without weight decay; a package that is not for commercial use",
        numerics="different",
        shows=("optimizer",),
        heads=("linear_blocks",),
        needs=(APOLLO_TORCH,),
        trainer={"optim": "apollo_adamw", "optim_args": text, "optim_target_modules": BLOCKS},
        optimizer={"name": "apollo_adamw", "args": text, "target_modules": BLOCKS},
    )

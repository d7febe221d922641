"""AdamW on the main directions of each gradient."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Need, Trick
from hf_efficient.tricks.apollo import BLOCKS


@spelled
def galore(
    rank: Annotated[int, AtLeast(1)] = 128,
    *,
    scale: Annotated[float, AtLeast(0.01)] = 0.25,
    update_proj_gap: Annotated[int, AtLeast(1)] = 200,
) -> Trick:
    """Keep AdamW's moments of each gradient's `rank` main directions, and train all weights with them: GaLore.

    A linear layer of sides d <= D has 8 x rank / d bytes of moments per parameter and 4 x rank / D of projection: at
    rank 1,024 and 4,096 x 4,096 that is 3 instead of 8. Embeddings, heads and norms have all 8.

    Use it to train all weights where lora is too little and AdamW's state does not fit. The authors take rank 128 for
    60M parameters, 512 for 1B and 1,024 for 7B, and a learning rate several times AdamW's, since updates are scaled by
    `scale`. The directions are found anew by an SVD every `update_proj_gap` updates.

    Not where a side is below the rank, where it saves nothing; not with weight decay, which transformers does not hand
    to it; nor with GPT-2, whose layers are no nn.Linear, nor under zero, which has no matrices for it, or fsdp, which
    cannot save it. The SVD of large layers takes minutes each time for 7B: apollo has none.

    Published: LLaMA-7B, optimizer state -65 % (-82 % in 8 bits); speed -17 % at 1B (arXiv 2403.03507).
    """
    text = f"rank={rank},update_proj_gap={update_proj_gap},scale={float(scale)}"
    return Trick(
        family="optimizer",
        saves="most of AdamW's 8 bytes of state per parameter, in linear layers wider than the rank",
        costs="another training, without weight decay; an SVD per layer now and then",
        numerics="different",
        shows=("optimizer",),
        heads=("linear_blocks",),
        needs=(Need(package="galore-torch", otherwise="Run `pip install 'hf-efficient[optimizers]'`."),),
        trainer={"optim": "galore_adamw", "optim_args": text, "optim_target_modules": BLOCKS},
        optimizer={"name": "galore_adamw", "args": text, "target_modules": BLOCKS},
    )

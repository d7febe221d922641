"""AdamW with its state in 4 bits, compiled by torch."""

from __future__ import annotations

from hf_efficient.needs import COMPILED_STEP, TORCHAO
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def adamw_torchao_4bit() -> Trick:
    """Keep both moments of AdamW in 4 bits with a scale per block: 1 byte per parameter instead of 8.

    torchao's AdamW, embeddings included; tensors below 4,096 elements or of no multiple of 256 stay in 32 bits. Use it
    for fine-tuning when even 2 bytes of state per parameter (adamw_8bit, adamw_torchao_8bit) do not fit and you want
    to keep AdamW's hyperparameters.

    Not for pre-training without comparing first: sixteen levels per moment are few, and transformers takes blocks of
    256 where torchao's own default for 4 bits is 128. Not for a short run: the step is compiled once for each shape;
    nor under fsdp, where it stops. Under zero see adamw_torchao_8bit.

    Published: Llama2-7B in bf16 on an A100, memory -36 %, speed -9 %; ViT-H under bf16 autocast on a 4070 Ti SUPER,
    memory -37 %, speed +1 % (torchao/optim/README.md, against torch's fused AdamW, with blocks of 128).
    """
    return Trick(
        family="optimizer",
        saves="7 of AdamW's 8 bytes of state per parameter",
        costs="moments rounded to 4 bits; compilation at the start",
        numerics="different",
        shows=("optimizer",),
        needs=(TORCHAO, COMPILED_STEP),
        trainer={"optim": "adamw_torch_4bit"},
        optimizer={"name": "adamw_torch_4bit"},
    )

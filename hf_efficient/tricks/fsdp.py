"""Training state sharded over the GPUs by PyTorch."""

from __future__ import annotations

from typing import Any

from hf_efficient.spelling import spelled
from hf_efficient.trick import Need, Trick


@spelled
def fsdp(reshard_after_forward: bool = True, offload: bool = False) -> Trick:
    """Give each GPU its share of weights, gradients and optimizer state with PyTorch's FSDP2, layer by layer.

    Use it when the model does not fit on one GPU and you want no other engine than PyTorch.
    `reshard_after_forward=False` keeps the gathered weights from forward to backward: less traffic, and the memory of
    all weights, as ZeRO-2 has it. `offload` keeps weights, gradients and optimizer state in host memory and updates
    there.

    Not on one GPU (there is nobody to share with), not where plain data parallelism fits, and not with adafactor,
    apollo, galore, adamw_torchao_4bit or an optimizer of bitsandbytes, which cannot update sharded weights or be saved:
    adamw_torchao_8bit can (not resumed), and zero goes with bitsandbytes. Weights in 4 bits (qlora) stay whole on every
    GPU. With gradient accumulation each GPU keeps whole gradients between the micro-batches of an update.

    With accelerate 1.15, encoders that list their embeddings among their layers (BERT, RoBERTa, ModernBERT, ViT) stop
    before the first step until the layers are named: `fsdp_transformer_layer_cls_to_wrap: RobertaLayer` below
    `fsdp_config` of the launch YAML. T5 and BERT with its masked-token head, which tie more than input to output
    embeddings, stop in any case: zero trains them.

    Activation checkpointing becomes FSDP's own, since the model's would gather the weights once more. Under bf16 or
    fp16 the shards are fp32, and the copies that are gathered and the gradients that are exchanged have 16 bits. One
    process of a machine reads the checkpoint, and saving writes whole weights.

    Published: 7 % lower peak memory than FSDP1 with higher MFU, Llama-7B on 8 H100 (torchtitan, docs/fsdp.md); sharding
    optimizer state, gradients and weights takes 16/N bytes per parameter on N GPUs instead of 16, for up to 1.5 x the
    communication of data parallelism (Rajbhandari et al., "ZeRO", 2020, stage 3).
    """
    sharing = {"reshard_after_forward": reshard_after_forward, "cpu_offload": offload, **_SHARED}
    kept = "" if reshard_after_forward else " (weights between the steps only)"
    return Trick(
        family="sharding",
        saves=f"each GPU holds its share of optimizer state, gradients and weights{kept}"
        + (", in host memory" if offload else ""),
        costs=("weights sent in every pass" if reshard_after_forward else "weights sent once in every step")
        + (", and copies to the host in every step" if offload else ""),
        numerics="exact",
        needs=(
            Need(
                accelerator=True,
                otherwise="Leave fsdp out: on a CPU the stack trains with plain data parallelism in its place, "
                "without a word.",
            ),
        ),
        trainer={"fsdp": True, "fsdp_config": {"version": 2, **sharing}},
        accelerator={"fsdp_plugin": {"fsdp_version": 2, **sharing}},
        launch={
            "distributed_type": "FSDP",
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_reshard_after_forward": reshard_after_forward,
                "fsdp_offload_params": offload,
                **{f"fsdp_{key}": value for key, value in _SHARED.items()},
            },
        },
    )


_SHARED: dict[str, Any] = {
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    # FSDP2's own default, sharded files, are none that from_pretrained reads, and Trainer then saves no model at all.
    "state_dict_type": "FULL_STATE_DICT",
    # Otherwise every process of a machine holds the whole model in host memory while it loads.
    "cpu_ram_efficient_loading": True,
}

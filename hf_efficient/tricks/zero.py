"""Training state sharded over the GPUs by DeepSpeed."""

from __future__ import annotations

from typing import Any, Literal

from hf_efficient.needs import DEEPSPEED
from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick

SHARDED = {1: "the optimizer state", 2: "optimizer state and gradients", 3: "optimizer state, gradients and weights"}
OFFLOADED = {None: (), "optimizer": ("optimizer",), "all": ("optimizer", "param")}
"""`offload` -> what leaves the GPU, as DeepSpeed's keys call it."""


@spelled
def zero(
    stage: Literal[1, 2, 3] = 2, offload: Literal["optimizer", "all"] | None = None, nvme_path: str | None = None
) -> Trick:
    """Give each GPU its share of the training state with DeepSpeed ZeRO, and move it to host memory with `offload`.

    Stage 1 shards the optimizer state, stage 2 the gradients too, stage 3 the weights too. `offload="optimizer"` keeps
    the optimizer state in host memory and updates there; `offload="all"` (stage 3) keeps the weights there as well.
    `nvme_path`, a folder on a fast local disk, takes the place of host memory (stage 3).
    Use it with the least stage that fits: 2 costs next to nothing over plain data parallelism, 3 sends the weights
    in every forward and backward pass.

    Not on one GPU without offload (there is nobody to share with), and not where plain data parallelism fits. The
    optimizer gets one flat row of all weights: adafactor, galore, apollo and schedule_free are refused, the 8-bit ones
    round the state of embeddings too. With offload it is DeepSpeed's own AdamW.

    The arguments exist before the model in stage 3, since weights are sharded while they load. "auto" in the JSON
    is filled from TrainingArguments or from the Accelerator; literals stand only where those have no field.

    Published: with N GPUs and mixed-precision Adam, 16 bytes per parameter become 4 + 12/N (stage 1), 2 + 14/N (2),
    16/N (3); speed close to data parallelism for 1 and 2, up to 1.5 x the communication for 3 (Rajbhandari et al.,
    "ZeRO", 2020).
    """
    if offload == "all" and stage != 3:
        raise ValueError(
            f"zero({stage}, offload='all') cannot be: only stage 3 shards weights. Take zero(3, offload='all')."
        )
    if nvme_path is not None and (stage != 3 or offload is None or not nvme_path.strip()):
        raise ValueError(
            "nvme_path is where stage 3 offloads to: write zero(3, offload='all', nvme_path='/local_nvme') with a "
            "folder of yours, or leave nvme_path out."
        )
    where = "" if not offload else ", on disk" if nvme_path else ", in host memory"
    sharding = _sharding(stage, OFFLOADED[offload], nvme_path)
    return Trick(
        family="sharding",
        saves=f"each GPU holds its share of {SHARDED[stage]}{where}",
        costs=("weights sent in every pass" if stage == 3 else "little over data parallelism")
        + (f", and copies to {'disk' if nvme_path else 'the host'} in every step" if offload else ""),
        numerics="exact",
        needs=(DEEPSPEED,),
        deepspeed={
            "zero_optimization": sharding,
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
        },
        launch={"distributed_type": "DEEPSPEED", "deepspeed_config": _launch_keys(sharding)},
    )


def _sharding(stage: int, offloaded: tuple[str, ...], nvme_path: str | None) -> dict[str, Any]:
    """Return the block `zero_optimization`."""
    sharding: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    device = {"device": "nvme", "nvme_path": nvme_path} if nvme_path else {"device": "cpu"}
    sharding |= {f"offload_{what}": {**device, "pin_memory": True} for what in offloaded}
    if stage == 3:
        # Filled from the model's hidden size by transformers and accelerate.
        sharding |= dict.fromkeys(
            ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
        )
        # Without it a saved stage 3 model is empty.
        sharding["stage3_gather_16bit_weights_on_model_save"] = True
    else:
        # Two buffers of it stand on the card: 0.8 GB at 2e8 in 16 bits, 2 GB at DeepSpeed's default of 5e8.
        sharding |= {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000}
    return sharding


def _launch_keys(sharding: dict[str, Any]) -> dict[str, Any]:
    """Return what the launch YAML can say of the block `zero_optimization`, in accelerate's names."""
    offload = {f"{key}_device": block["device"] for key, block in sharding.items() if key.startswith("offload_")}
    saved = sharding.get("stage3_gather_16bit_weights_on_model_save")
    stage_3 = {"zero3_init_flag": True, "zero3_save_16bit_model": saved} if saved is not None else {}
    return {"zero_stage": sharding["stage"], **offload, **stage_3}

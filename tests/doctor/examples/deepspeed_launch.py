"""Setups in which the checks of deepspeed_launch find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

DS = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}
BY_HAND = 'import os\nos.environ["MASTER_ADDR"] = "localhost"\nargs = TrainingArguments("out", deepspeed="ds.json")\n'


def _yaml(**keys: Any) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": keys}


EXAMPLES = {
    "launch-deepspeed-unknown-key": (
        [
            {"launch": _yaml(zero_stage=2, reduce_bucket_size=200000000)},
            {"launch": _yaml(zero_stge=2)},
            {"launch": _yaml(zero_stage=2, train_micro_batch_size_per_gpu=4)},
        ],
        [{"launch": _yaml(zero_stage=2, deepspeed_multinode_launcher="standard")}],
    ),
    "launch-keys-beside-deepspeed-argument": (
        [
            {"trainer": {"deepspeed": "z3.json"}, "launch": _yaml(zero3_save_16bit_model=True)},
            {"sft": {"deepspeed": "ds.json"}, "launch": _yaml(zero_stage=3, gradient_clipping=1.0)},
            {"trainer": {"deepspeed": "ds.json"}, "launch": _yaml(zero3_init_flag=True) | {"mixed_precision": "bf16"}},
        ],
        [
            {"trainer": {"deepspeed": "ds.json"}, "launch": _yaml(zero3_init_flag=True)},
            {"trainer": {}, "launch": _yaml(zero_stage=3, gradient_clipping=1.0)},
        ],
    ),
    "deepspeed-without-zero-block": (
        [
            {"trainer": {}, "deepspeed": {"bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}},
            {"accelerator": {}, "deepspeed": {"train_micro_batch_size_per_gpu": 2}},
        ],
        [{"trainer": {}, "deepspeed": DS}, {"deepspeed": {"train_batch_size": 8}}],
    ),
    "launch-deepspeed-not-chosen": (
        [
            {"launch": {"distributed_type": "MULTI_GPU", "deepspeed_config": {"zero_stage": 3}}},
            {"launch": {"distributed_type": "NO", "deepspeed_config": {"zero_stage": 2}}},
        ],
        [
            {"launch": _yaml(zero_stage=3)},
            {"launch": {"distributed_type": "MULTI_GPU", "deepspeed_config": {}}},
        ],
    ),
    "launch-zero3-init-below-stage-3": (
        [
            {"launch": _yaml(zero_stage=2, zero3_init_flag=True)},
            {"launch": _yaml(zero_stage=1, zero3_init_flag="true")},
        ],
        [{"launch": _yaml(zero_stage=3, zero3_init_flag=True)}, {"launch": _yaml(zero_stage=2, zero3_init_flag=False)}],
    ),
    "zero-nvme-without-path": (
        [
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}},
            {"launch": _yaml(zero_stage=3, offload_optimizer_device="nvme", offload_optimizer_nvme_path="/local_nvme")},
        ],
        [
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}
                }
            },
            {"launch": _yaml(zero_stage=3, offload_optimizer_device="cpu")},
        ],
    ),
    "deepspeed-started-with-python": (
        [
            {"trainer": {"deepspeed": "ds.json"}, "launcher": "python"},
            {"trainer": {"deepspeed": "conf/z3.json"}, "deepspeed": DS, "launcher": "python", "processes": 1},
        ],
        [
            {"trainer": {"deepspeed": "ds.json"}, "launcher": "torchrun"},
            {"trainer": {"deepspeed": "ds.json"}, "launcher": "python", "script": BY_HAND},
            {"trainer": {"deepspeed": "ds.json"}},
        ],
    ),
    "deepspeed-launcher-without-configuration": (
        [{"trainer": {"bf16": True}, "launcher": "deepspeed"}, {"sft": {}, "launcher": "deepspeed", "processes": 4}],
        [
            {"trainer": {"deepspeed": "ds.json"}, "launcher": "deepspeed"},
            {"trainer": {"bf16": True}, "launcher": "torchrun"},
        ],
    ),
    "deepspeed-and-fsdp": (
        [
            {"trainer": {"deepspeed": "ds.json", "fsdp": True}},
            {"sft": {"deepspeed": "z2.json", "fsdp": "full_shard auto_wrap"}},
        ],
        [{"trainer": {"deepspeed": "ds.json"}}, {"trainer": {"fsdp": True}}],
    ),
}

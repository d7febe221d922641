"""Setups in which the checks of launch_file find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

LOCAL = "LOCAL_MACHINE"


def _yaml(**keys: Any) -> dict[str, Any]:
    return {"launch": keys}


EXAMPLES = {
    "launch-unknown-key": (
        [
            _yaml(distributed_type="MULTI_GPU", num_procesess=2),
            _yaml(distributed_type="DEEPSPEED", zero_stage=2),
            _yaml(distributed_type="FSDP", fsdp_version=2),
        ],
        [
            _yaml(distributed_type="MULTI_GPU", num_processes=2, dynamo_backend="INDUCTOR"),
            _yaml(compute_environment="AMAZON_SAGEMAKER", ec2_instance_type="ml.p3.2xlarge"),
        ],
    ),
    "launch-unknown-word": (
        [
            _yaml(distributed_type="MULTIGPU"),
            _yaml(distributed_type="MULTI_GPU", mixed_precision="bfloat16"),
            _yaml(distributed_type="MULTI_GPU", mixed_precision=False),
            _yaml(dynamo_config={"dynamo_backend": "INDUCTER"}),
        ],
        [_yaml(distributed_type="MULTI_GPU", mixed_precision="bf16", dynamo_config={"dynamo_backend": "inductor"})],
    ),
    "launch-file-incomplete": (
        [_yaml(compute_environment=LOCAL, num_processes=2), _yaml(compute_environment=LOCAL, distributed_type="FSDP")],
        [
            _yaml(compute_environment=LOCAL, distributed_type="FSDP", num_processes=4),
            _yaml(mixed_precision="bf16"),
            _yaml(compute_environment=LOCAL, distributed_type="NO"),
        ],
    ),
    "launch-type-against-processes": (
        [_yaml(distributed_type="NO", num_processes=2), _yaml(distributed_type="MULTI_GPU", num_processes=1)],
        [_yaml(distributed_type="NO", num_processes=1), _yaml(distributed_type="MULTI_GPU", num_processes=2)],
    ),
    "launch-gpu-ids": (
        [
            _yaml(distributed_type="NO", gpu_ids=0),
            _yaml(distributed_type="MULTI_GPU", gpu_ids="2", num_processes=2, num_machines=1),
            _yaml(distributed_type="MULTI_GPU", gpu_ids="0,1", num_processes=4),
        ],
        [
            _yaml(distributed_type="MULTI_GPU", gpu_ids="0,1", num_processes=2),
            _yaml(distributed_type="MULTI_GPU", gpu_ids="all", num_processes=8),
        ],
    ),
    "launch-several-machines": (
        [
            _yaml(distributed_type="MULTI_GPU", num_machines=2, num_processes=8, machine_rank=0),
            _yaml(num_machines=3, num_processes=16, machine_rank=0, main_process_ip="10.0.0.1"),
        ],
        [
            _yaml(num_machines=2, num_processes=16, machine_rank=1, main_process_ip="10.0.0.1"),
            _yaml(num_machines=1, num_processes=8),
        ],
    ),
    "launch-dynamo-beside-torch-compile": (
        [
            {"launch": {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "trainer": {"torch_compile": True}},
            {"launch": {"dynamo_backend": "CUDAGRAPHS"}, "sft": {"torch_compile": True}},
        ],
        [
            {"launch": {"dynamo_backend": "NO"}, "trainer": {"torch_compile": True}},
            {"launch": {"dynamo_backend": "INDUCTOR"}, "trainer": {}},
        ],
    ),
}

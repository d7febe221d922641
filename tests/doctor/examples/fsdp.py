"""Setups in which the checks of fsdp find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any


def _yaml(**keys: Any) -> dict[str, Any]:
    named = {f"fsdp_{key}": value for key, value in keys.items()}
    return {"launch": {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": named}}


def _trainer(fsdp: Any = True, **keys: Any) -> dict[str, Any]:
    return {"trainer": {"fsdp": fsdp, "fsdp_config": keys}}


EXAMPLES = {
    "fsdp2-ignores-key": (
        [_yaml(version=2, sharding_strategy="SHARD_GRAD_OP"), _yaml(version=2, use_orig_params=True)],
        [_yaml(version=1, use_orig_params=True), _yaml(version=2, reshard_after_forward=True)],
    ),
    "fsdp-reshard-of-other-version": (
        [
            _yaml(version=2, reshard_after_forward="SHARD_GRAD_OP"),
            _yaml(version=1, reshard_after_forward="HYBRID_SHARD"),
        ],
        [
            _yaml(version=1, reshard_after_forward="FULL_SHARD"),
            _yaml(version=2, reshard_after_forward=False),
            _yaml(version=1, reshard_after_forward="HYBRID_SHARD", sharding_strategy="HYBRID_SHARD"),
        ],
    ),
    "fsdp-unknown-word": (
        [_yaml(version=1, auto_wrap_policy="TRANSFORMER_WRAP"), _yaml(version=2, state_dict_type="FULL")],
        [_yaml(version=2, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000000), _yaml(sharding_strategy="1")],
    ),
    "fsdp-version-unknown": ([_yaml(version=3), _trainer(version="v2")], [_yaml(version=2), _trainer()]),
    "fsdp-local-state-dict": (
        [_yaml(version=2, state_dict_type="LOCAL_STATE_DICT"), _trainer(state_dict_type="local_state_dict")],
        [_yaml(version=1, state_dict_type="LOCAL_STATE_DICT")],
    ),
    "fsdp-efficient-loading-without-sync": (
        [
            _yaml(version=1, sync_module_states=False, cpu_ram_efficient_loading=True),
            _yaml(version=1, sync_module_states="false"),
        ],
        [
            _yaml(version=1, sync_module_states=False, cpu_ram_efficient_loading=False),
            _yaml(version=2, cpu_ram_efficient_loading=True),
        ],
    ),
    "fsdp-config-key-not-read": (
        [_trainer(offload_params=True), _trainer(transformer_layer_to_wrap=["GPT2Block"])],
        [_trainer(cpu_offload=True, version=2), _yaml(version=2, offload_params=True)],
    ),
    "fsdp-as-words": (
        [_trainer("full_shard auto_wrap"), _trainer("hybrid_shard"), _trainer("fullshard")],
        [_trainer(True), {"trainer": {"fsdp": None}}],
    ),
    "fsdp-on-cpu": (
        [
            {"trainer": {"fsdp": True, "use_cpu": True}},
            {"launch": {"distributed_type": "FSDP", "use_cpu": True, "fsdp_config": {"fsdp_version": 2}}},
        ],
        [_trainer(), {"trainer": {"use_cpu": True}}],
    ),
}

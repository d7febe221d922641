"""The keys of a DeepSpeed JSON as deepspeed 0.19.8 reads them; a test compares them with the installed release."""

from __future__ import annotations

from collections.abc import Mapping

BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
TOP_NUMBERS = (
    *BATCH, "gradient_clipping", "steps_per_print", "gradient_predivide_factor", "vocabulary_size",
    "sequence_parallel_size", "data_parallel_size",
)  # fmt: skip
TOP_FLAGS = (
    "managed_gradient_accumulation", "prescale_gradients", "disable_allgather", "dump_state", "disable_python_gc",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "wall_clock_breakdown", "memory_breakdown",
    "use_data_before_expert_parallelism", "dataloader_drop_last",
)  # fmt: skip
TOP_OTHERS = (
    "optimizer", "scheduler", "zero_optimization", "fp16", "bf16", "bfloat16", "torch_autocast",
    "communication_data_type", "seq_parallel_communication_data_type", "gradient_allreduce_op",
    "activation_checkpointing", "aio", "flops_profiler", "autotuning", "tensorboard", "wandb", "csv_monitor", "comet",
    "comms_logger", "data_efficiency", "data_types", "checkpoint", "datastates_ckpt", "hybrid_engine",
    "pipeline", "compile", "timers", "tensor_parallel", "expert_parallel", "weight_quantization", "log_level",
    "allgather_size", "msamp",
)  # fmt: skip
TOP = frozenset((*TOP_NUMBERS, *TOP_FLAGS, *TOP_OTHERS))
"""Every key that is read at the top of the file; any other is passed over in silence."""

REMOVED: Mapping[str, str] = {
    "nebula": "leave it out: checkpoints are written by torch.save",
    "compression_training": "leave it out: the compression library is gone",
    "amp": 'use "bf16": {"enabled": "auto"} or "fp16": {"enabled": "auto"} or torch_autocast',
    "quantize_training": "leave it out: mixture of quantization is gone",
    "sparse_gradients": "leave it out: an embedding made with sparse=True needs no flag",
    "eigenvalue": "leave it out: mixture of quantization is gone",
    "sparse_attention": "leave it out and choose attn_implementation in from_pretrained",
    "elasticity": "leave it out and set train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps",
    "graph_harvesting": "leave it out",
    "curriculum_learning": "move it to data_efficiency.data_sampling.curriculum_learning",
    "progressive_layer_drop": "leave it out",
}
REMOVED_ZERO: Mapping[str, str] = {
    "mics_shard_size": "leave it out: MiCS is gone (zero_hpz_partition_size is the like in ZeRO++)",
    "mics_hierarchical_params_gather": "leave it out: MiCS is gone",
    "zeropp_loco_param": "leave it out: ZeRO++ works without it",
}
DEPRECATED_ZERO: Mapping[str, str] = {
    "cpu_offload": '"offload_optimizer": {"device": "cpu"}',
    "cpu_offload_param": '"offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": '"pin_memory" inside offload_optimizer or offload_param',
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
ZERO_NUMBERS = (
    "stage", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_module_granularity_threshold", "zero_hpz_partition_size",
)  # fmt: skip
ZERO_FLAGS = (
    "contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce", "allgather_partitions", "overlap_comm",
    "compute_grad_norm", "load_from_fp32_weights", "elastic_checkpoint", "stage3_gather_16bit_weights_on_model_save",
    "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "ignore_unused_parameters",
    "legacy_stage1", "round_robin_gradients", "parameter_alignment", "zero_quantized_weights",
    "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "memory_efficient_linear",
    "pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks",
    "save_muon_momentum_buffer_in_memory",
)  # fmt: skip
ZERO = frozenset((
    *ZERO_NUMBERS, *ZERO_FLAGS, *DEPRECATED_ZERO, "offload_param", "offload_optimizer", "zenflow", "leaf_module",
    *(name.removeprefix("stage3_") for name in (*ZERO_NUMBERS, *ZERO_FLAGS) if name.startswith("stage3_")),
))  # fmt: skip
FP16_NUMBERS = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
FP16 = frozenset((*FP16_NUMBERS, "enabled", "auto_cast", "consecutive_hysteresis", "fp16_master_weights_and_grads"))
BF16 = frozenset((
    "enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads", "bf16_optimizer_states",
))  # fmt: skip
OFFLOAD_PARAM = frozenset(("device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"))
OFFLOAD_OPTIMIZER = frozenset((
    "device", "nvme_path", "buffer_count", "pin_memory", "pipeline_read", "pipeline_write", "fast_init", "ratio",
    "super_offload", "cpuadam_cores_perc",
))  # fmt: skip
BLOCKS: Mapping[str, frozenset[str]] = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_param": OFFLOAD_PARAM,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER,
    "fp16": FP16,
    "bf16": BF16,
}
"""The blocks whose keys are checked by DeepSpeed itself: it refuses any other."""

BUCKETS = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""Keys of zero_optimization that "auto" derives from the model's hidden size."""
AUTO_BOTH = frozenset((
    *BATCH, "gradient_clipping", "fp16.enabled", "bf16.enabled", *(f"zero_optimization.{name}" for name in BUCKETS),
    *(f"zero_optimization.{name}" for name in (
        "stage", "offload_optimizer.device", "offload_param.device", "offload_param.nvme_path",
        "offload_optimizer.nvme_path", "stage3_gather_16bit_weights_on_model_save")),
    *(f"optimizer.params.{name}" for name in ("lr", "weight_decay")),
    *(f"scheduler.params.{name}" for name in ("warmup_min_lr", "warmup_max_lr", "total_num_steps", "warmup_num_steps")),
))  # fmt: skip
"""Where "auto" is filled by transformers' Trainer, and by accelerate with DummyOptim and DummyScheduler."""
AUTO_TRAINER = AUTO_BOTH | {"optimizer.params.betas", "optimizer.params.eps"}

YAML_READ = frozenset((
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
))  # fmt: skip
"""Keys of deepspeed_config in the accelerate YAML."""
YAML_REFUSED = (
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device",
    "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""Keys of deepspeed_config in the accelerate YAML that a DeepSpeed JSON may not stand beside."""

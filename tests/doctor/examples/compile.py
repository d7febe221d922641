"""Setups in which the checks of compile find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_LONGEST = {"kind": "map", "padding": "longest"}
_YAML = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
_SCRIPT = (
    "from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification\n"
    "from transformers import Trainer, TrainingArguments\n"
    "tokenizer = AutoTokenizer.from_pretrained('m')\nmodel = AutoModelForTokenClassification.from_pretrained('m')\n"
    "args = TrainingArguments('out', {})\n"
    "Trainer(model, args, DataCollatorForTokenClassification(tokenizer{}), train_dataset=rows).train()\n"
)

EXAMPLES = {
    "compiled-with-changing-lengths": (
        [
            {"trainer": {"torch_compile_mode": "max-autotune"}, "data": _LONGEST},
            {
                "accelerator": {"dynamo_backend": "inductor"},
                "launch": {"dynamo_mode": "reduce-overhead"},
                "data": _LONGEST,
            },
            {"files": {"train.py": _SCRIPT.format("torch_compile_backend='inductor'", "")}},
        ],
        [
            {"trainer": {"torch_compile": True}, "data": {**_LONGEST, "pad_to_multiple_of": 64}},
            {"trainer": {"torch_compile": True, "train_sampling_strategy": "group_by_length"}, "data": _LONGEST},
            {"trainer": {"bf16": True}, "data": _LONGEST},
            {"files": {"train.py": _SCRIPT.format("torch_compile=True", ", padding=how")}},
        ],
    ),
    "compiled-last-batch": (
        [
            {"trainer": {"torch_compile": True, "per_device_train_batch_size": 16}, "data": {"rows": 1001}},
            {
                "launch": {"dynamo_config": {"dynamo_backend": "INDUCTOR"}},
                "trainer": {"bf16": True},
                "data": {"rows": 30},
            },
        ],
        [
            {"trainer": {"torch_compile": True, "per_device_train_batch_size": 16}, "data": {"rows": 1600}},
            {"trainer": {"torch_compile": True, "dataloader_drop_last": True}, "data": {"rows": 1001}},
        ],
    ),
    "batch-finder-on-a-compiled-model": (
        [
            {"trainer": {"auto_find_batch_size": True, "torch_compile_backend": "aot_eager"}},
            {"sft": {"auto_find_batch_size": True}, "launch": {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}},
        ],
        [{"trainer": {"auto_find_batch_size": True}}, {"trainer": {"torch_compile": True}}],
    ),
    "unknown-compile-backend": (
        [
            {"trainer": {"torch_compile_backend": "inductr"}},
            {"trainer": {"torch_compile": True, "torch_compile_mode": "max_autotune"}},
            {"launch": {"dynamo_backend": "NVFUSER"}},
            {"accelerator": {"dynamo_backend": "triton"}},
        ],
        [
            {"trainer": {"torch_compile_backend": "cudagraphs", "torch_compile_mode": "default"}},
            {"launch": {"dynamo_backend": "INDUCTOR"}},
        ],
    ),
    "compile-turned-on-by-its-options": (
        [
            {"trainer": {"torch_compile": False, "torch_compile_mode": "max-autotune"}},
            {"trainer": {"torch_compile": False, "torch_compile_backend": "inductor"}},
        ],
        [{"trainer": {"torch_compile_mode": "max-autotune"}}, {"trainer": {"torch_compile": False}}],
    ),
    "compile-asked-for-twice": (
        [
            {"trainer": {"torch_compile": True}, "launch": {"dynamo_config": {"dynamo_backend": "AOT_EAGER"}}},
            {"trainer": {"torch_compile": False}, "env": {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}},
            {
                "files": {
                    "train.py": _SCRIPT.format("torch_compile=True", ", padding='max_length'"),
                    "launch.yaml": f"{_YAML}dynamo_backend: CUDAGRAPHS\n",
                }
            },
        ],
        [
            {"trainer": {"torch_compile": True}, "launch": {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}},
            {"trainer": {"torch_compile": True}, "launch": {"dynamo_backend": "NO"}},
            {"trainer": {}, "launch": {"dynamo_backend": "EAGER"}},
        ],
    ),
}

"""Setups in which the checks of data_loading find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_HEAD = "import torch\nfrom torch.utils.data import DataLoader\nrows = torch.load('rows.pt')\n"


def _loader(keywords: str, loop: bool = True) -> dict[str, object]:
    after = "for batch in loader:\n    model(batch).backward()\n" if loop else ""
    return {
        "files": {"train.py": f"{_HEAD}model = torch.nn.Linear(8, 1)\nloader = DataLoader(rows, {keywords})\n{after}"}
    }


EXAMPLES = {
    "persistent-workers-without-workers": (
        [
            {"trainer": {"dataloader_persistent_workers": True, "dataloader_num_workers": 0, "bf16": True}},
            {"sft": {"dataloader_persistent_workers": True, "max_length": 512}},
            _loader("batch_size=4, persistent_workers=True"),
        ],
        [
            {"trainer": {"dataloader_persistent_workers": True, "dataloader_num_workers": 3}},
            _loader("batch_size=4, persistent_workers=True, num_workers=int(input())"),
        ],
    ),
    "worker-option-without-workers": (
        [
            {"trainer": {"dataloader_prefetch_factor": 2}},
            {"trainer": {"dataloader_multiprocessing_context": "spawn", "dataloader_num_workers": 0}},
            _loader("4, True, prefetch_factor=2"),
            _loader("batch_size=4, num_workers=0, timeout=30"),
            {"dataloader": {"batch_size": 8, "multiprocessing_context": "fork"}},
        ],
        [
            {"trainer": {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1}},
            _loader("batch_size=4, num_workers=2, timeout=30, prefetch_factor=4"),
            _loader("batch_size=4, prefetch_factor=None, **more"),
        ],
    ),
    "loader-options-exclude-each-other": (
        [
            {"dataloader": {"batch_sampler": "buckets", "batch_size": 8}},
            {"dataloader": {"batch_size": None, "drop_last": True}},
            {"dataloader": {"sampler": "weighted", "shuffle": True, "batch_size": 8}},
        ],
        [
            {"dataloader": {"batch_sampler": "buckets", "num_workers": 2}},
            {"dataloader": {"sampler": None, "shuffle": True}},
        ],
    ),
    "no-workers-on-a-gpu": (
        [
            {"trainer": {"dataloader_num_workers": 0}, "machine": {"gpu": "H100-80GB"}},
            {"sft": {"dataloader_num_workers": 0, "bf16": True}, "machine": {"gpu": "RTX 4090"}},
        ],
        [
            {"trainer": {"dataloader_num_workers": 2}, "machine": {"gpu": "H100-80GB"}},
            {"trainer": {"dataloader_num_workers": 0}},
        ],
    ),
    "pinned-without-gpu": (
        [
            {"trainer": {"use_cpu": True, "dataloader_pin_memory": True}},
            {"sft": {"use_cpu": True, "dataloader_pin_memory": True, "max_steps": 3}},
        ],
        [{"trainer": {"use_cpu": True}}, {"trainer": {"dataloader_pin_memory": True}}],
    ),
    "rows-in-order": (
        [_loader("batch_size=4, shuffle=False"), _loader("shuffle=False, batch_size=2, num_workers=1")],
        [_loader("batch_size=4, shuffle=True"), _loader("batch_size=4, shuffle=False", loop=False)],
    ),
    "length-grouping-of-a-stream": (
        [
            {"trainer": {"train_sampling_strategy": "group_by_length", "max_steps": 5}, "data": {"kind": "iterable"}},
            {"trainer": {"train_sampling_strategy": "batch_rebalance", "max_steps": 5}, "data": {"kind": "iterable"}},
        ],
        [
            {"trainer": {"train_sampling_strategy": "group_by_length"}, "data": {"kind": "map"}},
            {"trainer": {"train_sampling_strategy": "random", "max_steps": 5}, "data": {"kind": "iterable"}},
        ],
    ),
}

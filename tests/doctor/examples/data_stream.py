"""Setups in which the checks of data_stream find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_STREAM = {"kind": "iterable", "sharded_by_worker": False}
_RAGGED = {"kind": "iterable", "padding": "longest"}
_HEAD = (
    "from torch.utils.data import DataLoader, IterableDataset, get_worker_info\n"
    "from transformers import Trainer, TrainingArguments\n"
)
_CLASS = "class Stream(IterableDataset):\n    def __iter__(self):\n        yield from {}\n"
_TWO = _HEAD + "args = TrainingArguments('out', max_steps=9, dataloader_num_workers={})\n"
_TRAIN = "Trainer(model=model, args=args, train_dataset=Stream()).train()\n"

EXAMPLES = {
    "stream-repeated-by-every-worker": (
        [
            {"trainer": {"max_steps": 9, "dataloader_num_workers": 6}, "data": _STREAM},
            {"dataloader": {"batch_size": 8, "num_workers": 3}, "data": _STREAM},
            {"files": {"a.py": _TWO.format(3) + _CLASS.format("open('x')") + _TRAIN}},
        ],
        [
            {"trainer": {"max_steps": 9, "dataloader_num_workers": 6}, "data": {**_STREAM, "sharded_by_worker": True}},
            {"trainer": {"max_steps": 9, "dataloader_num_workers": 6}, "data": {"kind": "iterable"}},
            {"files": {"a.py": _TWO.format(1) + _CLASS.format("open('x')") + _TRAIN}},
            {"files": {"b.py": _TWO.format(3) + _CLASS.format("self.part(get_worker_info())") + _TRAIN}},
        ],
    ),
    "fewer-shards-than-workers": (
        [
            {"trainer": {"dataloader_num_workers": 8, "max_steps": 9}, "data": {"kind": "iterable", "num_shards": 2}},
            {
                "files": {
                    "a.py": "from datasets import load_dataset\n"
                    + _TWO.format(4)
                    + "rows = load_dataset('csv', data_files=['a.csv', 'b.csv'], split='train', streaming=True)\n"
                    "Trainer(model=model, args=args, train_dataset=rows).train()\n"
                }
            },
        ],
        [
            {"trainer": {"dataloader_num_workers": 2, "max_steps": 9}, "data": {"kind": "iterable", "num_shards": 2}},
            {
                "files": {
                    "a.py": "from datasets import load_dataset\n"
                    + _TWO.format(4)
                    + "rows = load_dataset('csv', data_files='*.csv', split='train', streaming=True)\n"
                    "Trainer(model=model, args=args, train_dataset=rows).train()\n"
                }
            },
        ],
    ),
    "stream-without-max-steps": (
        [
            {"trainer": {"num_train_epochs": 2}, "data": {"kind": "iterable"}},
            {
                "files": {
                    "a.py": _HEAD
                    + _CLASS.format("range(9)")
                    + "Trainer(model=model, args=TrainingArguments('out', bf16=True), train_dataset=Stream()).train()\n"
                }
            },
        ],
        [
            {"trainer": {"max_steps": 100}, "data": {"kind": "iterable"}},
            {"trainer": {}, "data": {"kind": "map"}},
            {
                "files": {
                    "a.py": _HEAD
                    + _CLASS.format("range(9)")
                    + "    def __len__(self):\n        return 9\n"
                    + "Trainer(model=model, args=TrainingArguments('out'), train_dataset=Stream()).train()\n"
                }
            },
        ],
    ),
    "ragged-batches-dispatched": (
        [
            {
                "trainer": {"max_steps": 9, "accelerator_config": {"dispatch_batches": True}},
                "data": _RAGGED,
                "processes": 8,
            },
            {"accelerator": {"mixed_precision": "bf16"}, "data": _RAGGED, "processes": 4, "launcher": "torchrun"},
        ],
        [
            {
                "accelerator": {"dataloader_config": {"dispatch_batches": False}},
                "data": _RAGGED,
                "processes": 4,
            },
            {"sft": {"max_steps": 9}, "data": _RAGGED, "processes": 4},
            {"trainer": {"max_steps": 9}, "data": _RAGGED},
            {"trainer": {"max_steps": 9}, "data": {**_RAGGED, "kind": "map"}, "processes": 4},
        ],
    ),
    "split-batch-not-divisible": (
        [
            {
                "trainer": {"per_device_train_batch_size": 6, "accelerator_config": {"split_batches": True}},
                "processes": 4,
            },
            {
                "accelerator": {"dataloader_config": {"split_batches": True}},
                "dataloader": {"batch_size": 9},
                "processes": 2,
            },
        ],
        [
            {"trainer": {"per_device_train_batch_size": 6}, "processes": 4},
            {"trainer": {"per_device_train_batch_size": 6, "accelerator_config": {"split_batches": True}}},
        ],
    ),
    "shuffled-stream": (
        [
            {"dataloader": {"batch_size": 8, "shuffle": True}, "data": {"kind": "iterable"}},
            {"dataloader": {"batch_size": 8, "sampler": "weighted"}, "data": {"kind": "iterable"}},
        ],
        [
            {"dataloader": {"batch_size": 8, "shuffle": True}, "data": {"kind": "map"}},
            {"dataloader": {"batch_size": 8, "shuffle": False}, "data": {"kind": "iterable"}},
        ],
    ),
}

"""The page of `deepspeed_configs/`: when to take which file, what each key does, what each leaves on a card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_efficient.emit.deepspeed import deepspeed_json
from hf_efficient.emit.deepspeed_reasons import REASONS
from hf_efficient.merge import make_plan
from hf_efficient.plan import flatten
from hf_efficient.presets import PRESETS
from hf_efficient.shipped import DISK, DISK_DOC
from hf_efficient.tricks import catalogue

MEASURED = Path(__file__).parents[1] / "docs" / "measured" / "sharding.json"
FILES = tuple(name for name in PRESETS if make_plan(name).engine == "DEEPSPEED")
"""The presets that are DeepSpeed files, in the order of their presets."""

HEAD = """\
<!-- Made by `make generate` from the presets, emit/deepspeed_reasons.py and docs/measured/sharding.json. -->
# DeepSpeed files to copy

`hf-efficient config copy zero2 .` puts one into your project, which then needs `pip install deepspeed ninja`, after \
torch, and nothing of this package. Each file is the preset of the same name, and one file serves bf16 and fp16.
"""
WHICH = """\
## Which file

Where a card can hold everything, plain data parallelism needs no file. Else take the first that fits: zero1, zero2, \
then zero2_offload or zero3, of which the one asks for host memory and the other for a fast link between the cards. \
zero1 sends gradients once per update, the others after every micro-batch; what is offloaded waits for the host.
"""
ARITHMETIC = """\
Bytes: for each parameter that trains under AdamW in 16 bits, its part of weights, gradients and optimizer state. \
Buffers, activations and logits come on top, and in stage 3 the weights that the layer at work gathers.
"""
USE = """\
## How to use one

Under Trainer, every "auto" is filled from the arguments. Make them before the model: stage 3 shards weights as they \
load.

```python
args = TrainingArguments(deepspeed="zero2.json", bf16=True, gradient_accumulation_steps=4, max_grad_norm=1.0)
```

In a loop of your own, before the model as well:

```python
plugin = DeepSpeedPlugin(hf_ds_config="zero2.json")
accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin)
```

Here "auto" is a trap. Write two numbers into the file first:

- `"gradient_clipping": 0.5` for your norm, `0.0` for none. accelerate makes 1.0 of "auto", and \
`accelerator.clip_grad_norm_` clips nothing under DeepSpeed: the engine clips by this number.
- `"gradient_accumulation_steps": 4`. "auto" becomes the Accelerator's own number, which is 1 unless you give it; a \
number in the file wins over the Accelerator's.

`train_micro_batch_size_per_gpu` may stay "auto": it is the batch size of the loader that you hand to \
`accelerator.prepare(model, optimizer, loader)`, which stops without one.

Start either with one process per card: `accelerate launch --use_deepspeed --num_processes 2 train.py`. Add no \
`optimizer` block, which would take the place of `optim` in silence, and no `scheduler` block; a loop that prepares \
its own stops at either. A start that waits without a word after a killed one waits for the lock that it left while \
compiling: `rm ~/.cache/torch_extensions/*/*/lock`.
"""
KEYS = """\
## What each key does

"auto" stands for what the arguments say; a value stands where they have no field for it.
"""
MEMORY = """\
## What a card holds

GiB that PyTorch's allocator reserves on each card, were there no limit, by this package's estimate, for {size} row of \
{seq_len} tokens per card under the preset of the file's name (bf16, activation checkpointing, AdamW). CUDA's context \
and NCCL's buffers come on top, 0.5 to 1.4 GiB. **Bold** fits a card of {small} ({small_card}), (in brackets) does not \
fit one of {large} ({large_card}), both with those on top. Host: memory of the computer for all cards together; \
DeepSpeed advises half as much again.
"""
YOURS = """\
Yours: `hf-efficient memory --model M zero2 --batch-size 1 --seq-len 2048 --gpus 4`. How far off the estimate is: \
[docs/memory.md](../docs/memory.md); no run of DeepSpeed is among what it was held against.
"""
STATES = 16
"""Bytes per parameter in mixed precision: weight and gradient in 16 bits, float32 weight and two moments."""


class Bytes(NamedTuple):
    """Bytes per parameter on one of N cards: `whole` on each, `shared` by N."""

    whole: int
    shared: int

    def on(self, cards: int) -> float:
        """Return the bytes on one of so many cards."""
        return self.whole + self.shared / cards

    def __str__(self) -> str:
        parts = [str(self.whole)] if self.whole else []
        return " + ".join([*parts, *([f"{self.shared}/N"] if self.shared else [])]) or "0"


def configs() -> dict[str, dict[str, Any]]:
    """Return every DeepSpeed file under its name, the one that is made for a disk with /local_nvme."""
    disk = catalogue()["zero"](3, offload="all", nvme_path="/local_nvme")
    plans = {name: make_plan(name) for name in FILES} | {DISK: make_plan(disk)}
    return {name: json.loads(deepspeed_json(plan)) for name, plan in plans.items()}


def states(config: Mapping[str, Any]) -> Bytes:
    """Return the bytes per parameter of weights, gradients and optimizer state that a file leaves on a card.

    Source: Rajbhandari et al., "ZeRO", 2020; Ren et al., "ZeRO-Offload", 2021, of which stages 2 and 3 send gradients
    to the host as they are made.
    """
    zero = config["zero_optimization"]
    stage = zero["stage"]
    whole = {1: 4, 2: 2, 3: 0}[stage]
    shared = STATES - whole
    if "offload_optimizer" in zero:
        shared = 2 if stage == 3 and "offload_param" not in zero else 0
    return Bytes(whole, shared)


def page(sharding: Mapping[str, Any]) -> str:
    """Return the page; `sharding` is `docs/measured/sharding.json`."""
    parts = [HEAD, WHICH, _files(), ARITHMETIC, USE, KEYS, _keys(), *_memory(sharding), YOURS]
    return "\n".join(parts)


def _files() -> str:
    docs = {name: PRESETS[name].doc for name in FILES} | {DISK: DISK_DOC}
    rows = [(f"`{name}`", docs[name], str(states(config))) for name, config in configs().items()]
    return _table(("file", "when", "bytes on each of N cards"), rows)


def _keys() -> str:
    """Return the table of keys: in the order of REASONS, with the values and the files that have them."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, config in configs().items():
        for key, value in flatten(config):
            found.setdefault(key, {}).setdefault(json.dumps(value), []).append(name)
    rows = [(f"`{key}`", _values(found[key]), *REASONS[key]) for key in REASONS]
    return _table(("key", "value", "what it does", "why this value"), rows)


def _values(found: Mapping[str, Sequence[str]]) -> str:
    """Return the values of one key; where files differ, with those that have each."""
    if len(found) == 1:
        return f"`{next(iter(found))}`"
    return "; ".join(f"`{value}` in {', '.join(files)}" for value, files in found.items())


def _memory(sharding: Mapping[str, Any]) -> list[str]:
    (small, small_card), (large, large_card) = sharding["cards"].items()
    batch = sharding["batch"]
    cards = {"small": small, "small_card": small_card, "large": large, "large_card": large_card}
    packages = ", ".join(f"{name} {version}" for name, version in sharding["packages"].items())
    made = f"`{sharding['command']}`, {sharding['date']}, commit {sharding['commit']}, {sharding['machine']}"
    rows, counts = sharding["rows"], sorted({row["gpus"] for row in sharding["rows"]})
    head = ("model", "file", *(f"{count} card{'s' * (count > 1)}" for count in counts), "host")
    pairs = dict.fromkeys((row["model"], row["file"]) for row in rows)
    lines = [_line([row for row in rows if (row["model"], row["file"]) == pair], (small, large)) for pair in pairs]
    return [MEMORY.format(**batch, **cards), _table(head, lines), f"{made}; Python {sharding['python']}, {packages}.\n"]


def _line(rows: Sequence[Mapping[str, Any]], sizes: tuple[str, str]) -> tuple[str, ...]:
    """Return the cells of one model under one file, over the numbers of cards."""
    first = rows[0]
    host = f"{first['host_gib'] * first['gpus']:.0f}" if first["host_gib"] else ""
    model = f"{first['model']}, {first['params'] / 1e9:.1f}B"
    return model, f"`{first['file']}`", *(_cell(row, sizes) for row in rows), host


def _cell(row: Mapping[str, Any], sizes: tuple[str, str]) -> str:
    small, large = sizes
    text = f"{row['reserved_gib']:.1f}"
    return f"**{text}**" if small in row["fits"] else text if large in row["fits"] else f"({text})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in cells)

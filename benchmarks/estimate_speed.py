"""How long an estimate takes after imports, and how long it would take to trace every layer.

    python benchmarks/estimate_speed.py

Each plan is estimated and traced in full by turns, five times; medians and the range. Llama's sizes, batch 1 x 4096.
"""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
import transformers
from transformers import LlamaConfig

from hf_efficient import Batch, estimate, make_plan
from hf_efficient.memory.assemble import assemble
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.reading import read
from hf_efficient.memory.step import Step
from hf_efficient.memory.whole import whole_step

REPEATS = 5
BATCH = Batch(size=1, seq_len=4096)
SIZES = {
    "7B": LlamaConfig(dtype="bfloat16"),
    "70B": LlamaConfig(
        dtype="bfloat16", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8,
    ),
}  # fmt: skip
PLANS = {
    "full": ("bf16", "activation_checkpointing"),
    "lora": ("bf16", "lora", "activation_checkpointing"),
    "qlora": ("bf16", "qlora", "activation_checkpointing"),
}


def seconds(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def every_layer(size: str, plan: str) -> None:
    """Trace all layers of a model."""
    made = make_plan(*PLANS[plan])
    run = read(made)
    step = Step(autocast=torch.bfloat16, checkpointing=run.checkpointing is not None)
    whole_step(assemble(made, run, SIZES[size]), lambda model: batch_for(model, BATCH), step, fast=False)


def spread(times: list[float]) -> str:
    """Return a median and its range."""
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def main() -> None:
    """Print a row for each size and plan."""
    print(f"{platform.machine()}, torch {torch.__version__}, transformers {transformers.__version__}")
    warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by old names
    for plan in PLANS:
        estimate(
            make_plan(*PLANS[plan]), LlamaConfig(num_hidden_layers=2), batch=BATCH
        )  # what is imported at first use
    for size in SIZES:
        for plan in PLANS:
            quick, whole = [], []
            for _ in range(REPEATS):
                quick.append(seconds(partial(estimate, make_plan(*PLANS[plan]), SIZES[size], batch=BATCH)))
                whole.append(seconds(partial(every_layer, size, plan)))
            ratio = statistics.median(whole) / statistics.median(quick)
            print(f"{size:4} {plan:6} estimate {spread(quick)}; one full trace {spread(whole)}; ratio {ratio:.1f}")


if __name__ == "__main__":
    main()

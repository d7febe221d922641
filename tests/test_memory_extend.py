"""A few layers traced and extended are the trace of all layers, moment by moment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import transformers as tf
from torch import nn

import hf_efficient as hf
from hf_efficient.memory import whole
from hf_efficient.memory.assemble import assemble
from hf_efficient.memory.estimate import how_taken
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.reading import read
from hf_efficient.memory.results import Batch
from hf_efficient.memory.taken import share_out
from hf_efficient.plan import Plan

pytestmark = pytest.mark.launch  # seconds in all: not in `make test-fast`

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
MODELS: dict[str, Any] = {
    "llama": lambda layers: tf.LlamaConfig(**GROUPED, num_hidden_layers=layers),
    "qwen3": lambda layers: tf.Qwen3Config(**GROUPED, num_hidden_layers=layers),
    "gemma2": lambda layers: tf.Gemma2Config(**GROUPED, num_hidden_layers=2 * layers, sliding_window=8),
    "gpt2": lambda layers: tf.GPT2Config(vocab_size=64, n_embd=32, n_layer=layers, n_head=4, n_positions=32),
    "bert": lambda layers: tf.BertConfig(**SMALL, num_hidden_layers=layers),
    "t5": lambda layers: tf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=layers, num_heads=4,
                                     pad_token_id=0, decoder_start_token_id=0),
}  # fmt: skip
"""Name -> its configuration with so many units of layers alike; those of Gemma 2 are pairs."""
PLANS = {
    "float32": "adamw_fused",
    "bf16": "bf16",
    "checkpointing": "activation_checkpointing",
    "every second": "bf16 activation_checkpointing(every_n_layers=2)",
    "offload": "bf16 activation_checkpointing(offload=True)",
    "lora": "lora bf16",
    "lora checkpointing": "lora activation_checkpointing",
    "qlora": "qlora bf16 activation_checkpointing",
    "accumulation": "bf16 gradient_accumulation(2)",
}
UNITS = 14
FAST = (("llama", "bf16"), ("bert", "checkpointing"), ("gpt2", "float32"))
SAMPLE = (("gpt2", "every second"), ("bert", "offload"), ("qwen3", "bf16"))
"""What `make test` tries besides; the rest is for `make test-all`."""


def _cases() -> Iterator[Any]:
    for model, plan in product(MODELS, PLANS):
        marks = pytest.mark.launch if (model, plan) in SAMPLE else pytest.mark.slow
        yield pytest.param(model, plan, marks=() if (model, plan) in FAST else marks)


def traced(model: str, plan: str, *, fast: bool) -> tuple[list[int], list[int]]:
    """Return the heights of a step, and how many layers each trace had that was made for them."""
    made = hf.make_plan(*PLANS[plan].split(" "))
    run = read(made)
    built = assemble(made, run, MODELS[model](UNITS * (2 if "every" in plan and model != "gemma2" else 1)))
    lengths: list[int] = []
    original = whole._traced

    def counted(model: nn.Module, *others: Any) -> Any:
        lengths.append(max(len(m) for m in model.modules() if isinstance(m, nn.ModuleList)))
        return original(model, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "_traced", counted)
        how = how_taken(run, share_out(built, run, 1), None)
        cut = whole.whole_step(built, lambda m: batch_for(m, Batch(size=2, seq_len=16)), how, fast=fast)
    return whole.heights(cut), lengths


@pytest.mark.parametrize(("model", "plan"), list(_cases()))
def test_a_short_trace_extends_to_the_long_one(model: str, plan: str) -> None:
    """Every local maximum of the live bytes is the same, and not all layers were traced for it."""
    extended, short = traced(model, plan, fast=True)
    full, long = traced(model, plan, fast=False)
    assert extended == full
    assert max(short) < long[0]


def lives(plan: Plan, gpus: int, *, fast: bool) -> tuple[list[Any], int, int]:
    """Return each storage with the place of its end, in the order of their beginnings; operations; and bytes moved."""
    run = read(plan)
    built = assemble(plan, run, MODELS["llama"](UNITS))
    how = how_taken(run, share_out(built, run, gpus), None)
    cut = whole.whole_step(built, lambda m: batch_for(m, Batch(size=2, seq_len=16)), how, fast=fast)
    events = [event for segment in cut for event in segment.events]
    begun: dict[int, list[Any]] = {}
    found = []
    for place, event in enumerate(e for e in events if e.size):
        if event.size > 0:
            begun[event.key] = [event.size, event.role, None]
            found.append(begun[event.key])
        else:
            begun.pop(event.key)[2] = place  # KeyError: freed twice, or never there
    return found, sum(e.flops for e in events), sum(e.moved for e in events)


@pytest.mark.launch
@pytest.mark.parametrize("version", [None, 1, 2])
def test_every_storage_of_the_long_trace_goes_when_it_should(version: int | None) -> None:
    """FSDP gathers layers ahead: what a layer frees is what its own neighbour made, at the ends of a stack too."""
    plan = hf.make_plan("bf16", *(["fsdp"] if version else []))
    if version == 1:
        plan = plan.override("trainer", {"fsdp_config": {"version": 1}}, by="you")
    assert lives(plan, 4, fast=True) == lives(plan, 4, fast=False)

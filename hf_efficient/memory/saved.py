"""What the backward pass needs of the forward pass, found by tracing small models and losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory.build import faked, on_meta
from hf_efficient.memory.given import dtype_named, switch, whole
from hf_efficient.memory.record import Event, Recorder
from hf_efficient.memory.step import Step, trace
from hf_efficient.wording import unknown

TOKENS, VOCABULARY = 512, 8192
"""Large enough for whole blocks to be no matter."""
ROW, WORDS, WIDTH = 64, 512, 128
"""Tokens, vocabulary and hidden size of the Llama whose saved bytes are traced."""
PLAIN = "cross_entropy"
"""torch's own, in the dtype of the logits."""


def loss_bytes(dtype: str, loss: str) -> tuple[float, float, float]:
    """Return the bytes per token and vocabulary entry that a loss takes, found by running it on tensors without data.

    In forward; in backward where the model's outputs are let go before, as Trainer does; in backward where they are
    kept. `dtype` is that of the logits; `loss` a function of transformers.loss.loss_utils that takes logits, labels and
    `vocab_size`, such as ForCausalLMLoss, or `cross_entropy`, torch's own.
    """
    function = _loss(loss)
    runs = [_through_loss(function, dtype_named(dtype), keep) for keep in (False, True)]
    return _most(runs[0], "forward"), _most(runs[0], "backward"), _most(runs[1], "backward")


def _loss(name: str) -> Callable[..., torch.Tensor]:
    if name == PLAIN:
        return lambda logits, labels, vocab_size: torch.nn.functional.cross_entropy(logits[0], labels[0])
    from transformers.loss import loss_utils

    known = {
        key: value
        for key, value in vars(loss_utils).items()
        if inspect.isfunction(value) and {"logits", "labels", "vocab_size"} <= {*inspect.signature(value).parameters}
    }
    if name not in known:
        raise unknown("loss of logits, labels and a vocabulary called", name, [*known, PLAIN])
    return known[name]


def _through_loss(function: Callable[..., torch.Tensor], dtype: torch.dtype, keep: bool) -> list[Event]:
    with FakeTensorMode():
        hidden = torch.empty(1, TOKENS, 1, dtype=dtype, requires_grad=True)
        head = torch.empty(VOCABULARY, 1, dtype=dtype, requires_grad=True)
        labels = torch.empty(1, TOKENS, dtype=torch.int64)
        recorder = Recorder()
        recorder.know([hidden, head, labels])
        with recorder:
            with recorder.during("forward"):
                logits = torch.nn.functional.linear(hidden, head)
                loss = function(logits=logits, labels=labels, vocab_size=VOCABULARY)
                kept = logits if keep else None
                del logits
            with recorder.during("backward"):
                loss.backward()
                events = list(recorder.events)
            del kept
    return events


def _most(events: list[Event], phase: str) -> float:
    live = most = 0
    for event in events:
        live += event.size
        most = max(most, live) if event.phase == phase else most
    return round(most / TOKENS / VOCABULARY, 2)


def saved_activations(model: Mapping[str, bool], activation_checkpointing: bool, layers: int) -> float:
    """Return the bytes kept for the backward pass, relative to those without checkpointing, of a small float32 Llama.

    `model`: {"training": bool}. A model in evaluation mode does not checkpoint, whatever its switch says. The ratio
    falls with the layers and grows with the vocabulary: this Llama has a hidden size of 128, an MLP of 256, 512 words,
    one row of 64 tokens, and a CPU's kernels. The sizes were chosen: a report gives 0.143 for
    four layers of a Llama that it does not name, and others have 0.13 to 0.18. An Estimate traces the model itself.
    """
    if set(model) != {"training"}:
        raise ValueError(f"model={dict(model)!r} does not say whether it trains: write {{'training': True}} or False.")
    training = switch("model's training", model["training"])
    on, layers = switch("activation_checkpointing", activation_checkpointing), whole("layers", layers)
    return _saved_by(layers, training, on) / _saved_by(layers, training, False)


@lru_cache
def _saved_by(layers: int, training: bool, checkpointing: bool) -> int:
    """Return the bytes that live after the forward pass of a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers,
                         num_attention_heads=4, use_cache=False)  # fmt: skip
    with on_meta(torch.float32):
        model: Any = LlamaForCausalLM(config)
    for module in model.modules():
        if checkpointing and hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = True
    model.train(training)
    mode = FakeTensorMode()
    faked(model, mode)
    with mode:
        tokens = torch.empty(1, ROW, dtype=torch.int64)
    traced = trace(
        model, {"input_ids": tokens, "labels": tokens}, Step(checkpointing=checkpointing, imitate=False), mode
    )
    return sum(event.size for event in traced.events if event.phase == "forward")

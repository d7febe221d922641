"""What a rank holds and gathers under FSDP, in the trace of a small model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hf_efficient.memory.build import on_meta
from hf_efficient.memory.fsdp import fsdp
from hf_efficient.memory.reading import Run
from hf_efficient.memory.record import rounded
from hf_efficient.memory.shares import Shares
from hf_efficient.memory.step import Step
from hf_efficient.memory.units import layer_units
from hf_efficient.memory.whole import whole_step

pytestmark = pytest.mark.launch  # seconds in all: not in `make test-fast`

LAYER = 73_984
"""Bytes of a layer of `mistral` in bf16, as torch's own FSDP2 gathers them."""
PLAIN = Run(autocast="bfloat16")
CHECKPOINTED = {"every_n_layers": 1, "offload": False, "reentrant": False}


def mistral(layers: int = 3) -> Any:
    """Return the model whose order of gathering was read off torch's own FSDP2 on two made-up ranks."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, sliding_window=None, use_cache=False,
    )  # fmt: skip
    with on_meta(torch.bfloat16):
        return MistralForCausalLM._from_config(config).train()


def events(model: nn.Module, shares: Shares, run: Run) -> list[Any]:
    """Return every event of a traced step of one row of eight tokens."""
    checkpointing = run.checkpointing or {}
    if run.checkpointing and not isinstance(model, Frozen):
        model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    step = Step(
        autocast=torch.bfloat16 if run.autocast else None,
        checkpointing=run.checkpointing is not None,
        reentrant=bool(checkpointing.get("reentrant")),
        wrap=shares.wrap,
    )

    def batch(_: nn.Module) -> dict[str, torch.Tensor]:
        return {name: torch.zeros((1, 8), dtype=torch.long) for name in ("input_ids", "labels")}

    return [event for segment in whole_step(model, batch, step, fast=False) for event in segment.events]


def gathered(model: nn.Module, how: Mapping[str, Any], run: Run) -> list[int]:
    """Return the gathered bytes after each change, of two ranks."""
    live, found = 0, []
    shares = fsdp(model, how, run, 2)
    happened = events(model, shares, run)
    keys = {event.key for event in happened if event.role == "gathered"}
    for event in happened:
        if event.key in keys:
            live += event.size
            found.append(live)
    return found


def test_a_rank_stores_its_part_of_each_weight_in_float32_under_mixed_precision() -> None:
    """Trained weights are stored in float32 and computed with in bf16, which is what the trace sees."""
    model = mistral()
    numbers = sum(p.numel() for p in model.parameters())
    buffers = sum(rounded(b.numel() * b.element_size()) for b in model.buffers())
    shares = fsdp(model, {"version": 2}, PLAIN, 2)
    assert shares.weights == numbers // 2 * 4 + buffers
    assert {w.dtype for w in shares.updated} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sum(w.numel for w in shares.updated) == numbers // 2


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_more_ranks_hold_less(ranks: int) -> None:
    """Shards are as many times smaller as there are ranks, where the sizes divide."""
    one, many = (fsdp(mistral(), {"version": 1}, Run(), n).weights for n in (1, ranks))
    buffers = sum(rounded(b.numel() * b.element_size()) for b in mistral().buffers())
    assert many - buffers == (one - buffers) // ranks


def test_fsdp2_holds_three_layers_when_it_copies_the_second_out() -> None:
    """Buffers of this layer and of the one before, and the weights: 221,952 bytes in torch's own FSDP2."""
    model = mistral()
    fsdp(model, {"version": 2}, PLAIN, 2)
    layer = layer_units(model)[0]
    assert sum(dict(model.named_parameters())[name].numel() * 2 for name in layer.names) == LAYER
    tail = rounded((128 * 64 + 64) * 2)
    seen = gathered(mistral(), {"version": 2}, PLAIN)
    assert 3 * rounded(LAYER) in seen
    assert max(seen[: seen.index(3 * rounded(LAYER)) + 1]) == 3 * rounded(LAYER)
    assert max(seen) <= 3 * rounded(LAYER) + 2 * tail + rounded(LAYER // 2) * 2


def test_weights_that_stay_gathered_are_all_there_at_the_loss() -> None:
    """reshard_after_forward=False keeps every layer until its backward pass."""
    kept = gathered(mistral(), {"version": 2, "reshard_after_forward": False}, PLAIN)
    assert max(kept) >= 3 * rounded(LAYER) + max(gathered(mistral(), {"version": 2}, PLAIN)) - 3 * rounded(LAYER)
    assert max(kept) > max(gathered(mistral(), {"version": 2}, PLAIN))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("checkpointing", [None, CHECKPOINTED, CHECKPOINTED | {"reentrant": True}])
def test_everything_gathered_goes_and_a_gradient_stays(version: int, checkpointing: Any) -> None:
    """After the passes a rank has its part of the gradients and nothing else of FSDP's."""
    if version == 2 and checkpointing and checkpointing["reentrant"]:
        pytest.skip("the product's own checkpointing is never reentrant")
    model, run = mistral(), replace(PLAIN, checkpointing=checkpointing)
    shares = fsdp(model, {"version": version}, run, 2)
    happened = events(model, shares, run)
    left: dict[str, int] = {}
    roles = {event.key: event.role for event in happened if event.size > 0}
    for event in happened:
        role = roles.get(event.key, "")
        left[role] = left.get(role, 0) + event.size
    assert left["gathered"] == left.get("bucket", 0) == 0
    numbers = sum(w.numel for w in shares.updated)
    assert numbers * 4 <= left["gradient"] < numbers * 4 + 512 * len(happened)


class Layer(nn.Module):
    """A frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sin(self.linear(x))


class Frozen(nn.Module):
    """Frozen layers over a trained embedding, checkpointed from outside of each layer, as transformers 4 does."""

    _no_split_modules = ("Layer",)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(128, 64), nn.ModuleList(Layer() for _ in range(12))
        self.layers.requires_grad_(False)
        self.gradient_checkpointing = True

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = self._gradient_checkpointing_func(layer.__call__, x)  # type: ignore[operator]
        return {"loss": x.sum()}


def test_frozen_layers_keep_their_inputs_under_reentrant_checkpointing_alone() -> None:
    """FSDP1's handle on a detached input holds it, and its gradient, until the backward pass is over."""

    def top(*, reentrant: bool) -> int:
        with torch.device("meta"):
            model = Frozen()
        run = Run(checkpointing=CHECKPOINTED | {"reentrant": reentrant})
        happened = events(model, fsdp(model, {"version": 1}, run, 2), run)
        hidden = {event.key for event in happened if event.shape == (1, 8, 64)}
        live = found = 0
        for event in happened:
            if event.key in hidden:
                live += 1 if event.size > 0 else -1
                found = max(found, live)
        return found

    assert top(reentrant=True) >= 2 * 12
    assert top(reentrant=False) < 12 + 8


def test_whole_gradients_stay_between_micro_batches() -> None:
    """With accumulation nothing is reduced before the last micro-batch."""
    model, run = mistral(), replace(PLAIN, accumulation=4)
    happened = events(model, fsdp(model, {"version": 2}, run, 2), run)
    whole = sum(p.numel() * 2 for p in model.parameters())
    live = peak = 0
    keys = {event.key for event in happened if event.role == "gradient"}
    for event in happened:
        live += event.size if event.key in keys else 0
        peak = max(peak, live)
    assert peak >= whole


def test_offloaded_weights_are_in_host_memory() -> None:
    """Shards, their float32 copies' gradients and moments leave the card."""
    shares = fsdp(mistral(), {"version": 2, "cpu_offload": True}, PLAIN, 2)
    on_card = fsdp(mistral(), {"version": 2}, PLAIN, 2)
    assert shares.weights < 1024 * 4 < on_card.weights
    assert shares.optimizer == 0
    assert shares.host >= 4 * sum(w.numel * 4 for w in shares.updated)


def test_a_model_without_named_layers_is_refused() -> None:
    """FSDP wraps the layers that a model names; where there are none the sentence says what to take."""
    with pytest.raises(ValueError, match="take zero"):
        fsdp(nn.Linear(2, 2), {"version": 2}, PLAIN, 2)

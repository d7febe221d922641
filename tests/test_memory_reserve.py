"""What a step reserves: loading, passes and update, step after step, and batches of other lengths between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from hf_efficient import Batch, estimate, make_plan
from hf_efficient.machine import Machine
from hf_efficient.memory import fit
from hf_efficient.memory.blocks import MIB
from hf_efficient.memory.extend import Segment
from hf_efficient.memory.lengths import DRAWN, drawn, shorter, varies
from hf_efficient.memory.optimizers import Update
from hf_efficient.memory.record import Event
from hf_efficient.memory.replay import Round, replay
from hf_efficient.memory.reserve import reserve
from hf_efficient.memory.results import GIB
from hf_efficient.memory.shares import Shares
from hf_efficient.memory.weights import Weight

pytestmark = pytest.mark.launch
CONFIG = LlamaConfig(
    vocab_size=32000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    architectures=["LlamaForCausalLM"],
)  # fmt: skip


def of(*names: str, batch: Batch, **others: Any) -> Any:
    """Estimate a plan on a small Llama."""
    return estimate(make_plan(*names), CONFIG, batch=batch, **others)


def test_what_is_reserved_is_at_least_what_is_allocated() -> None:
    """And not half as much again, where all batches are alike."""
    found = of("bf16", batch=Batch(size=4, seq_len=512))
    assert found.allocated_gib <= found.reserved_gib < 1.5 * found.allocated_gib


def test_batches_of_many_lengths_reserve_more() -> None:
    """What a short batch frees is too small for the next longer one; with segments that grow it is not."""
    same, mixed = (of("bf16", batch=Batch(size=2, seq_len=1024, padding=p)) for p in (False, True))
    assert mixed.reserved_gib > 1.2 * same.reserved_gib
    growing = make_plan("bf16").override("env", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, by="you")
    eased = estimate(growing, CONFIG, batch=Batch(size=2, seq_len=1024, padding=True))
    assert eased.reserved_gib < 0.9 * mixed.reserved_gib


def test_a_card_too_small_for_what_is_cached_gives_it_back() -> None:
    """It fits only just, and says so; with less than is allocated it does not fit."""
    mixed = of("bf16", batch=Batch(size=2, seq_len=1024, padding=True))
    cards = [
        Machine(gpu="made", accelerator="cuda", capability=(8, 0), memory_gib=(gib + 0.48) / (1 - fit.SPARE))
        for gib in (mixed.reserved_gib + 0.01, 0.9 * mixed.reserved_gib, 0.9 * max(mixed.moments.values()))
    ]
    said = [fit.on_card(mixed, card) for card in cards]
    assert [(one.fits, one.tight) for one in said] == [(True, False), (True, True), (False, False)]
    assert all(one.device_gib <= card.memory_gib for one, card in zip(said[:2], cards, strict=False))


def test_lengths_are_drawn_between_two_traces() -> None:
    """What is the same stays, what halves is in proportion, what quarters goes with the square."""
    whole, half = 2**20, 2**19
    longest = [("same", 1024, 0), ("line", whole, 0), ("square", whole, 1), ("line", -whole, 0), ("same", -1024, 0)]
    short = [("same", 1024, 0), ("line", half, 0), ("square", half // 2, 1), ("line", -half, 0), ("same", -1024, 0)]
    found = drawn(longest, short)
    assert len(found) == DRAWN
    assert found == drawn(longest, short)
    for passes in found:
        sizes = {key: size for key, size, _ in passes if size > 0}
        share = sizes["line"] / whole
        assert 0.09 < share < 1
        assert sizes["same"] == 1024
        assert sizes["square"] == pytest.approx(whole * share**2, rel=0.05)
        assert [stream for _, _, stream in passes] == [0, 0, 1, 0, 0]
        assert passes[3] == ("line", -sizes["line"], 0)
    assert drawn(longest, short[:-1]) == []


def test_a_model_that_does_otherwise_with_short_rows_has_an_estimate() -> None:
    """Around the width of a window other masks are made: that is said, and nothing is refused."""
    from transformers import MistralConfig

    fields = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = MistralConfig(
        **fields, num_attention_heads=4, num_key_value_heads=2, sliding_window=32, architectures=["MistralForCausalLM"]
    )
    found = estimate(make_plan("bf16"), config, batch=Batch(size=2, seq_len=48, padding=True))
    assert any("does otherwise with short ones" in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(Batch(size=2, seq_len=8, padding=True), True), (Batch(size=2, seq_len=8), False),
     (Batch(size=2, padding=True), False)],
)  # fmt: skip
def test_only_padded_text_varies(batch: Batch, expected: bool) -> None:
    """Images have one size; the shorter batch has half of every length."""
    assert varies(batch) is expected
    half = shorter(Batch(size=2, seq_len=9, target_len=4))
    assert (half.size, half.seq_len, half.target_len) == (2, 4, 2)


def _segment(*events: tuple[int, int, str]) -> list[Segment]:
    return [Segment("forward", 0, -1, [Event(key, size * MIB, "forward", role=role) for key, size, role in events])]


def test_gathered_weights_have_memory_of_their_own() -> None:
    """What FSDP gathers comes from another stream, whose blocks activations cannot take."""
    passes = ((1, 100, ""), (1, -100, ""), (2, 100, "gathered"), (2, -100, "gathered"))
    plain = ((1, 100, ""), (1, -100, ""), (2, 100, ""), (2, -100, ""))
    shares, ended = Shares(weights=20 * MIB, updated=[]), Update(0, 0, [])
    found = [
        reserve(_segment(*each), ended, shares, accumulating=False, workspaces=0).on().reserved // MIB
        for each in (passes, plain)
    ]
    assert found == [220, 120]


def test_wrapping_a_unit_takes_it_twice() -> None:
    """FSDP1 makes one tensor of a layer's weights before it keeps a part; what that leaves is there for the steps."""
    shares = Shares(weights=50 * MIB, updated=[], wrapped=(((60 * MIB, 40 * MIB), 50 * MIB),))
    held = reserve(_segment((1, 30, "")), Update(0, 0, []), shares, accumulating=False, workspaces=0).on()
    assert held.reserved // MIB == 60 + 40 + 100


def test_gathered_weights_go_later_than_the_host_says() -> None:
    """FSDP1's host is two gatherings ahead, so that three layers' weights are there."""
    layers = [event for key in range(6) for event in ((key, 100, "gathered"), (key, -100, ""))]
    plain = Shares(weights=0, updated=[])
    wrapped = Shares(weights=0, updated=[], wrapped=(((2 * MIB,), 2 * MIB),))
    found = [
        reserve(_segment(*layers), Update(0, 0, []), each, accumulating=False, workspaces=0).on().reserved // MIB
        for each in (plain, wrapped)
    ]
    assert found[0] == 100
    assert found[1] >= 300


def test_quantized_weights_are_loaded_from_16_bits() -> None:
    """The largest of them is on the card once unpacked, and its block stays reserved."""
    shares = Shares(weights=50 * MIB, updated=[], pieces=(50 * MIB,), unpacked=200 * MIB)
    held = reserve(_segment((1, 2, "")), Update(0, 0, []), shares, accumulating=False, workspaces=0)
    assert held.on().reserved // MIB == 200 + 50


def test_gradients_of_an_earlier_micro_batch_stay_through_the_step() -> None:
    """They come first, and a later micro-batch adds to them."""
    weight = Weight((100 * MIB // 4,), torch.float32)
    shares = Shares(weights=100 * MIB, updated=[weight], pieces=(100 * MIB,))
    cut = _segment((1, 50, ""), (2, 100, ""), (2, -100, ""), (1, -50, ""))
    held = reserve(cut, Update(200 * MIB, 0, []), shares, accumulating=True, workspaces=0)
    assert held.step.micro_batches == 2
    assert held.on().reserved // MIB == 100 + 100 + 150 + 200


def test_other_passes_come_before_and_behind() -> None:
    """Steps of other sizes, half of them first, then the longest, the others, and the longest again."""
    step = Round([("a", 30 * MIB, 0), ("a", -30 * MIB, 0)], [])
    others = [[("a", size * MIB, 0), ("a", -size * MIB, 0)] for size in (10, 20)]
    found = replay([], step, others=others)
    assert (found.steps, found.reserved // MIB) == (4, 10 + 30)


def test_reserved_gib_is_the_replay() -> None:
    """The estimate's figure is that of its own sequence, and a named card says no more than there is."""
    found = of("bf16", batch=Batch(size=4, seq_len=512), machine=Machine.named("A100-80GB"))
    assert found.reserved_gib == found.reserve.on().reserved / GIB
    assert found.device_gib == pytest.approx(found.reserved_gib + found.beside_gib["CUDA's context"] + fit.DRIVER_GIB)

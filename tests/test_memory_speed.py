"""What operations take, and how long a step takes on a card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient import Batch, Machine, estimate, make_plan
from hf_efficient.memory.demand import Demand
from hf_efficient.memory.kernels import attention
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.speed import EFFICIENCY, family, speed
from hf_efficient.memory.traffic import Traffic, host_update_s
from hf_efficient.memory.work import Kernel

NOTHING = Traffic(0.0, 0.0, 0)
CARD = Machine(
    gpu="made", accelerator="cuda", capability=(8, 0), gpus=1, memory_gib=80.0, bandwidth_gb_s=1000.0,
    peak_tflops={"float32": 10.0, "tf32": 50.0, "bfloat16": 100.0}, link_gb_s=100.0, host_link_gb_s=10.0,
)  # fmt: skip
PRODUCT = Kernel("mm", "forward", "bfloat16", 10**12, 1000)
MOVE = Kernel("add", "forward", "bfloat16", 0, 10**9)


def asked(work: dict[Kernel, int], **others: Any) -> Demand:
    """Return a demand of these kernels alone."""
    return Demand(**{"work": work, "micro_batches": 1, "tokens": 1, "update": 0, "traffic": NOTHING} | others)


def events(function: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Return what `function` of tensors without data does, as (op, flops, bytes) of what takes anything."""
    recorder = Recorder()
    with FakeTensorMode():
        tensors = [torch.empty(shape) for shape in shapes]
        recorder.know(tensors)
        with recorder:
            function(*tensors)
    return [(e.op, e.flops, e.moved) for e in recorder.events if e.moved or e.flops]


@pytest.mark.parametrize(
    ("function", "shapes", "flops", "moved"),
    [
        (lambda a, b: a @ b, [(4, 8), (8, 16)], 2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 4 * 16)),
        (lambda a, b: a + b, [(8,), (8,)], 0, 4 * 24),
        (lambda a, b: a.add_(b), [(8,), (8,)], 0, 4 * 24),
        (lambda a, b: a.copy_(b), [(8,), (8,)], 0, 4 * 16),
        (lambda a: a.expand(1000, 8) * 2.0, [(1, 8)], 0, 4 * (8 + 8000)),
        (lambda a: torch._foreach_add_([a, a], 1.0), [(8,)], 0, 4 * 32),
    ],
)
def test_an_operation_reads_and_writes_each_tensor_once(function: Any, shapes: Any, flops: int, moved: int) -> None:
    """What is written over is not read; what is expanded is read as it is stored."""
    ((_, found, bytes_), *others) = events(function, *shapes)
    assert (found, bytes_, others) == (flops, moved, [])


@pytest.mark.parametrize("function", [lambda a: a.view(-1), lambda a: a.t()[1:], torch.empty_like, torch.detach])
def test_looking_at_a_tensor_in_another_way_is_free(function: Any) -> None:
    """Views take no kernel, and neither does memory that nobody writes."""
    assert events(function, (4, 4)) == []


def test_an_embedding_reads_the_rows_that_it_hands_out() -> None:
    """Three rows of a thousand: indices in, rows in and out."""

    def look_up(table: torch.Tensor) -> Any:
        return nn.functional.embedding(torch.zeros(3, dtype=torch.long), table)

    assert events(look_up, (1000, 8))[-1][2] == 3 * 8 + 2 * 3 * 8 * 4


def test_causal_attention_computes_half() -> None:
    """Two products forward, each rows x heads x length x length x width."""
    whole, half = (
        events(lambda q, k, v, c=causal: attention(q, k, v, is_causal=c), *[(2, 4, 64, 16)] * 3)[0][1]
        for causal in (False, True)
    )
    assert whole == 2 * 2 * (2 * 4 * 64 * 64 * 16)
    assert half == whole // 2


def test_a_kernel_takes_its_operations_and_its_bytes() -> None:
    """A product at the card's rate, a move at its bandwidth, each in the share of it that kernels get."""
    found = speed(asked({PRODUCT: 2, MOVE: 3}), CARD)
    assert found is not None
    bytes_s = 1000e9 * EFFICIENCY.bandwidth
    assert found.products == pytest.approx(2 * (10**12 / (100e12 * EFFICIENCY.product["a100"]) + 1000 / bytes_s))
    assert found.moving == pytest.approx(3 * 10**9 / (1000e9 * EFFICIENCY.bandwidth))
    assert found.step_s == pytest.approx(found.products + found.moving)
    slow = speed(asked({PRODUCT._replace(moved=10**12): 1}), CARD)
    assert slow is not None
    assert slow.products == pytest.approx(found.products / 2 + 10**12 / bytes_s, rel=1e-6)


def test_float32_is_slower_than_tf32() -> None:
    """The rate is that of the dtype, and tf32 is a rate of float32."""
    wide = PRODUCT._replace(dtype="float32")
    times = [speed(asked({wide: 1}, tf32=tf32), CARD) for tf32 in (False, True)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].products == pytest.approx(5 * times[1].products)


def test_short_kernels_wait_for_python() -> None:
    """A thousand kernels that move nothing to speak of take a thousand launches."""
    found = speed(asked({MOVE._replace(moved=8): 1000}, micro_batches=2), CARD)
    assert found is not None
    assert found.step_s == pytest.approx(2 * 1000 * EFFICIENCY.launch)
    assert found.waiting == pytest.approx(found.step_s, rel=1e-3)


def test_mfu_does_not_count_what_is_computed_again() -> None:
    """A product that is repeated takes time and is not the model's."""
    once = speed(asked({PRODUCT: 1}), CARD)
    again = speed(asked({PRODUCT: 1, PRODUCT._replace(phase="recompute"): 1}), CARD)
    assert once is not None
    assert again is not None
    assert once.mfu == pytest.approx(EFFICIENCY.product["a100"])
    assert again.mfu == pytest.approx(once.mfu / 2)


def test_exchange_is_hidden_in_part_and_never_more_than_there_is_to_compute() -> None:
    """The rest of it is waited for; where the link takes longer than everything else, all of that."""
    free = speed(asked({PRODUCT: 1}), CARD)
    assert free is not None
    for link in (10**8, 10**12):
        found = speed(asked({PRODUCT: 1}, traffic=Traffic(link, 0.0, 2)), CARD)
        assert found is not None
        whole = link / (100e9 * EFFICIENCY.link) + 2 * EFFICIENCY.call
        assert found.exchange == pytest.approx(max(whole - free.step_s, whole * (1 - EFFICIENCY.hidden)))


@pytest.mark.parametrize(
    ("capability", "kin"),
    [((7, 0), "volta"), ((7, 5), "volta"), ((8, 0), "a100"), ((8, 6), "ampere"), ((8, 9), "ampere"), ((9, 0), "hopper"),
     ((10, 0), "hopper"), ((12, 0), "ampere")],
)  # fmt: skip
def test_cards_are_of_a_family(capability: tuple[int, int], kin: str) -> None:
    """GeForce cards of Ampere, Ada and Blackwell are of one, and servers' cards of others."""
    assert family(capability) == kin


def test_pcie_is_a_share_of_its_own() -> None:
    """A link of at most 64 GB/s is PCIe."""
    times = []
    for link in (31.5, 300.0):
        found = speed(asked({}, traffic=Traffic(10**9, 0.0, 0)), replace(CARD, link_gb_s=link))
        assert found is not None
        times.append(found.exchange)
    expected = [1 / (31.5 * EFFICIENCY.pcie), 1 / (300 * EFFICIENCY.link)]
    assert times == pytest.approx(expected)


def test_compile_leaves_a_share_of_moves_and_launches() -> None:
    """Products are what they were; accumulation repeats all, and the share of the peak stays."""
    plain, compiled, twice = (
        speed(asked({PRODUCT: 1, MOVE: 1}, **others), CARD) for others in ({}, {"compiled": True}, {"micro_batches": 2})
    )
    assert plain is not None
    assert compiled is not None
    assert twice is not None
    assert compiled.moving == pytest.approx(EFFICIENCY.compiled * plain.moving)
    assert compiled.products == plain.products
    assert twice.mfu == pytest.approx(plain.mfu)
    few = MOVE._replace(moved=8)
    slow = [speed(asked({few: 1000}, compiled=on), CARD) for on in (False, True)]
    assert slow[0] is not None
    assert slow[1] is not None
    assert slow[1].step_s == pytest.approx(EFFICIENCY.compiled * slow[0].step_s, rel=1e-3)


@pytest.mark.launch
@pytest.mark.parametrize(("names", "ranks"), [("zero(1)", 8), ("zero(3)", 8), ("fsdp", 8)])
def test_each_rank_updates_its_part(names: str, ranks: int) -> None:
    """And clips its part: what an update moves is about one part of what one GPU would."""
    from transformers import LlamaConfig

    plans = [make_plan("bf16", "gradient_clipping", *each) for each in ((names,), (names,))]
    demands = [
        estimate(plan, LlamaConfig(**CONFIG), batch=Batch(size=2, seq_len=32), gpus=gpus).demand
        for plan, gpus in zip(plans, (1, ranks), strict=True)
    ]
    assert demands[0] is not None
    assert demands[1] is not None
    assert demands[1].update == pytest.approx(demands[0].update / ranks, rel=0.2)


@pytest.mark.launch
@pytest.mark.parametrize("names", ["zero(3, 'optimizer')", "fsdp(offload=True)"])
def test_the_host_updates_what_all_ranks_train(names: str) -> None:
    """On any number of GPUs the host's memory sees every number that trains, and the card updates nothing."""
    from transformers import LlamaConfig

    for gpus in (2, 8):
        found = estimate(make_plan("bf16", names), LlamaConfig(**CONFIG), batch=Batch(size=2, seq_len=32), gpus=gpus)
        assert found.demand is not None
        assert found.demand.on_host == pytest.approx(found.trainable_params, rel=0.02)
        assert found.demand.update == 0


def test_host_memory_is_waited_for() -> None:
    """Bytes over the link to the host, and an update there."""
    found = speed(asked({}, traffic=Traffic(0.0, 1e9, 0), on_host=10**6), CARD)
    assert found is not None
    assert found.step_s == pytest.approx(0.1 + host_update_s(10**6))  # nothing is computed meanwhile


def test_a_card_without_rates_has_no_speed() -> None:
    """A driver's name that the table lacks has no figures."""
    assert speed(asked({PRODUCT: 1}), replace(CARD, peak_tflops={})) is None


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.launch
def test_a_step_computes_six_operations_for_each_weight_and_token() -> None:
    """Two forward and four backward for weights that multiply, and attention; half of it again with checkpointing."""
    from transformers import LlamaConfig

    tokens, weights = 2 * 32, 2 * (4 * 64**2 + 3 * 64 * 128) + 96 * 64
    scores = 2 * (2 * 4 * 32 * 32 * 16)  # layers x rows x heads x length x length x width
    plain, again = (
        estimate(make_plan("bf16", *names), LlamaConfig(**CONFIG), batch=Batch(size=2, seq_len=32), machine=CARD)
        for names in ([], ["activation_checkpointing"])
    )
    flops = {
        phase: sum(times * k.flops for k, times in e.demand.work.items() if k.phase == phase)
        for e in (plain, again) if e.demand for phase in ("forward", "backward", "recompute")
    }  # fmt: skip
    assert flops["forward"] == 2 * weights * tokens + 2 * scores
    assert flops["backward"] == 4 * weights * tokens + 5 * scores
    # the last product of a layer is not needed again
    assert flops["recompute"] == 2 * (weights - 96 * 64 - 2 * 64 * 128) * tokens + 2 * scores
    assert plain.step_s is not None
    assert again.step_s is not None
    assert plain.tokens_per_s == pytest.approx(tokens / plain.step_s)
    assert sum(plain.seconds.values()) == pytest.approx(plain.step_s)

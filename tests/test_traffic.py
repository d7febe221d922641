"""What one rank sends in an update, the time of an update on the host, and what lies outside PyTorch's allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_efficient.memory.context import EAGER_GIB, IDLE_GIB, WORKING_GIB, context_gib, nccl_gib, workspace_mib
from hf_efficient.memory.exchange import exchange_of
from hf_efficient.memory.reading import Run
from hf_efficient.memory.taken import share_out
from hf_efficient.memory.traffic import Exchange, Traffic, host_update_s, traffic

N = 1_000_000
"""Numbers that train; two bytes each under mixed precision, four in float32."""


def sent(**what: Any) -> Traffic:
    """Return the traffic of an engine that trains N numbers in 16 bits on four GPUs."""
    return traffic(Exchange(**{"ranks": 4, "trained": N, "gradients": 2 * N} | what))


def test_one_gpu_sends_nothing() -> None:
    """Without another GPU and without the host, nothing goes over a link, whatever the engine."""
    for engine in ("NO", "DEEPSPEED", "FSDP"):
        assert sent(engine=engine, ranks=1, stage=3, weights=2 * N, units=9) == (0, 0, 0)


@pytest.mark.parametrize("accumulation", [1, 8])
def test_ddp_sends_gradients_once_for_an_update(accumulation: int) -> None:
    """A ring of four all-reduces by sending 2 x 3/4 of the gradients, in the last micro-batch alone."""
    assert sent(gradients=4 * N, accumulation=accumulation, reductions=3) == (2 * 3 / 4 * 4 * N, 0, 3)


ZERO = {  # stage, micro-batches, does each rank get its share alone?: what is sent, in numbers of 16 bits on four GPUs
    (0, 8, False): 2 * 0.75,
    (1, 8, False): 2 * 0.75 + 0.75,
    (2, 1, False): 2 * 0.75 + 0.75,
    (2, 1, True): 0.75 + 0.75,
    (2, 8, False): 8 * 2 * 0.75 + 0.75,
    (3, 1, True): (2 + 1) * 0.75,
    (3, 8, True): 8 * (2 + 1) * 0.75,
}


@pytest.mark.parametrize(("case", "numbers"), ZERO.items())
def test_zero_reduces_and_gathers_as_its_stage_does(case: tuple[int, int, bool], numbers: float) -> None:
    """Stages 2 and 3 reduce in every micro-batch; 1 and 2 gather the updated weights once, 3 gathers twice in each."""
    stage, accumulation, scatter = case
    weights = 2 * N if stage == 3 else 0
    found = sent(engine="DEEPSPEED", stage=stage, accumulation=accumulation, scatter=scatter, weights=weights)
    assert found.link == pytest.approx(2 * N * numbers)


def test_zero_3_sends_half_as_much_again_as_data_parallelism() -> None:
    """Rajbhandari et al.: two gatherings and a reduction that scatters are 1.5 times an all-reduce."""
    three = sent(engine="DEEPSPEED", stage=3, weights=2 * N)
    assert three.link == pytest.approx(1.5 * sent().link)


def test_what_stays_gathered_is_not_gathered_for_the_backward_pass() -> None:
    """Where all weights stay from forward to backward, one gathering is left; half of them, one and a half."""
    for kept, gatherings in ((0, 2), (N, 1.5), (2 * N, 1)):
        found = sent(engine="FSDP", weights=2 * N, kept=kept)
        assert found.link == pytest.approx(2 * N * 0.75 * (gatherings + 1))


def test_fsdp_gathers_in_every_micro_batch_and_reduces_in_the_last() -> None:
    """Four micro-batches gather eight times, and reduce once; reentrant checkpointing gathers a third time in each."""
    assert sent(engine="FSDP", weights=2 * N, accumulation=4).link == pytest.approx(2 * N * 0.75 * (8 + 1))
    assert sent(engine="FSDP", weights=2 * N, accumulation=4, passes=3).link == pytest.approx(2 * N * 0.75 * (12 + 1))


def test_each_unit_gathers_and_reduces_by_a_call_of_its_own() -> None:
    """Ten units, four micro-batches: 80 calls to gather, and 10 to reduce."""
    assert sent(engine="FSDP", weights=2 * N, accumulation=4, units=10, reductions=10).calls == 90


OFFLOADED = {  # stage, micro-batches: bytes for each number of a rank: float32 down, 16 bits up, what is added besides
    (1, 1): 4 + 2,
    (1, 4): 4 + 2 + 2 * 2,
    (2, 1): 4 + 2,
    (2, 4): 4 + 2 + 7 * 2,
    (3, 1): 4 + 2 + 2 * 2,
    (3, 4): 4 + 2 + 8 * 2,
}


@pytest.mark.parametrize(("case", "each"), OFFLOADED.items())
def test_deepspeeds_optimizer_on_the_host_moves_each_ranks_part(case: tuple[int, int], each: int) -> None:
    """A rank's gradients go down in float32 and its weights up in 16 bits; accumulation moves gradients both ways."""
    stage, accumulation = case
    there = Exchange(
        engine="DEEPSPEED", stage=stage, ranks=4, accumulation=accumulation, trained=N, gradients=2 * N,
        offload="optimizer", down=4 * N // 4,
    )  # fmt: skip
    assert traffic(there).host == pytest.approx(each * N / 4)


def test_weights_on_the_host_come_up_for_each_gathering() -> None:
    """Under FSDP a rank's part comes in float32, for every pass of every micro-batch; its gradients go down once."""
    found = sent(engine="FSDP", weights=2 * N, accumulation=4, offload="all", stored=N, down=N)
    assert found.host == pytest.approx(8 * N + N)


def test_host_update_is_bound_by_host_memory() -> None:
    """Adam moves 28 bytes for a number: 7e9 take 3.9 s at 50 GB/s, a quarter of 72.7e9 the 10 s that were published."""
    assert host_update_s(7_000_000_000) == pytest.approx(3.92)
    assert host_update_s(int(72.7e9 / 4)) == pytest.approx(10, rel=0.05)
    assert host_update_s(N, gb_s=28) == pytest.approx(1e-3)


def tiny() -> LlamaForCausalLM:
    """Return a Llama of two layers on meta, in float32, whose embedding is not tied."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def test_an_exchange_is_filled_from_a_model_and_a_plan() -> None:
    """DDP reduces float32, the others 16 bits; a small model stays gathered under ZeRO-3, head and norm under FSDP2."""
    numbers = sum(p.numel() for p in tiny().parameters())
    runs = {
        "ddp": Run(autocast="bfloat16"),
        "zero": Run(autocast="bfloat16", engine="DEEPSPEED", zero={"stage": 3, "reduce_bucket_size": 50_000}),
        "fsdp": Run(autocast="bfloat16", engine="FSDP", fsdp={"version": 2}),
    }
    found = {}
    for name, run in runs.items():
        model = tiny()
        share_out(model, run, 4)
        found[name] = exchange_of(model, run, ranks=4)
    assert {name: e.gradients for name, e in found.items()} == {
        "ddp": 4 * numbers,
        "zero": 2 * numbers,
        "fsdp": 2 * numbers,
    }
    assert found["zero"].kept == found["zero"].weights == 2 * numbers
    assert found["zero"].reductions == -(-numbers // 50_000)
    assert found["fsdp"].kept == 2 * (256 * 64 + 64)  # head and final norm
    assert (found["fsdp"].units, found["fsdp"].reductions) == (4, 4)
    assert [round(traffic(e).link / numbers, 2) for e in found.values()] == [6.0, 3.0, 4.29]


def test_offloading_plans_say_what_lies_on_the_host() -> None:
    """ZeRO-3's weights lie there in 16 bits, FSDP's in float32; gradients come in float32."""
    away = {"device": "cpu"}
    zero = Run(
        autocast="bfloat16", engine="DEEPSPEED", zero={"stage": 3, "offload_optimizer": away, "offload_param": away}
    )
    fsdp = Run(autocast="bfloat16", engine="FSDP", fsdp={"version": 2, "cpu_offload": True})
    numbers = sum(p.numel() for p in tiny().parameters())
    for run, width in ((zero, 2), (fsdp, 4)):
        model = tiny()
        share_out(model, run, 4)
        found = exchange_of(model, run, ranks=4)
        assert (found.offload, found.stored, found.down) == ("all", width * numbers // 4, 4 * numbers // 4)


def test_shipped_stage_2_all_reduces_its_buckets() -> None:
    """With DeepSpeed's defaults stages 1 and 2 all-reduce; without whole buckets each rank gets its share alone."""
    for keys, scatter in (({}, False), ({"use_multi_rank_bucket_allreduce": False}, True)):
        run = Run(autocast="bfloat16", engine="DEEPSPEED", zero={"stage": 2, **keys})
        assert exchange_of(tiny(), run, ranks=4).scatter is scatter


def test_a_context_is_smaller_since_kernels_load_lazily() -> None:
    """Every card with both figures takes less since CUDA 11.7; a V100 took 1343 MiB before."""
    assert context_gib((7, 0), cuda=(10, 2)) * 1024 == pytest.approx(1343)
    assert all(context_gib(card) < context_gib(card, cuda=(11, 1)) for card in EAGER_GIB)
    assert all(WORKING_GIB[card] == pytest.approx(idle, abs=0.09) for card, idle in IDLE_GIB.items())
    assert context_gib((10, 0)) == context_gib((9, 0)) == 0.65


PUBLISHED = {  # capability, ranks, NVLink: GiB of one process outside PyTorch's allocator
    "four A100-40GB, awslabs/keys_values issue 92": ((8, 0), 4, True, 37.46 - 36.04 - 321.37 / 1024),
    "eight RTX 3080, huggingface/trl issue 3436": ((8, 6), 8, False, 9.54 - 6.61 - 2.57),
    "four A10G, meta-llama/llama-cookbook PR 898": ((8, 6), 4, False, 21.80 - 20.30 - 1.15),
}


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)
def test_context_and_nccl_together_are_as_published(published: tuple[tuple[int, int], int, bool, float]) -> None:
    """What messages of torch.OutOfMemoryError leave for context and NCCL is met within 0.06 GiB."""
    capability, ranks, nvlink, gib = published
    assert context_gib(capability) + nccl_gib(ranks, nvlink=nvlink) == pytest.approx(gib, abs=0.06)


def test_nccl_takes_nothing_alone() -> None:
    """One GPU has no communicator; two have smaller buffers than more, and PCIe the smallest."""
    assert nccl_gib(1) == 0 < nccl_gib(8, nvlink=False) < nccl_gib(2) < nccl_gib(3) == nccl_gib(8)


def test_cublas_workspaces_are_larger_since_hopper() -> None:
    """8.125 MiB up to Ada, 32 MiB on Hopper and Blackwell."""
    assert [workspace_mib(card) for card in ((7, 0), (8, 9), (9, 0), (12, 0))] == [8.125, 8.125, 32, 32]

"""What one rank holds under ZeRO and DDP."""

from __future__ import annotations

import pytest

from hf_efficient import Batch, estimate, make_plan
from hf_efficient.memory.results import GIB, Estimate
from hf_efficient.memory.sharing import zero_states
from hf_efficient.promises.heads import configuration

CONFIG = {
    "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 8,
}  # fmt: skip


def of(*names: str, gpus: int = 4, size: int = 1) -> Estimate:
    """Estimate a plan on a small Llama on several GPUs."""
    config = configuration("LlamaConfig", "LlamaForCausalLM", **CONFIG)
    return estimate(make_plan("bf16", *names), config, batch=Batch(size=size, seq_len=128), gpus=gpus)


@pytest.mark.launch
def test_each_stage_shares_more() -> None:
    """Stage 1 shares the optimizer state, 2 the gradients too, 3 the weights too; more ranks share more."""
    stages = [of(f"zero({stage})") for stage in (1, 2, 3)]
    optimizer, gradients, weights = (
        [found.breakdown[part] for found in stages] for part in ("optimizer", "gradients", "weights")
    )
    params = stages[0].params
    assert optimizer == pytest.approx([12 * params / 4 / GIB] * 3, rel=0.01)
    assert gradients[0] > 3 * gradients[1]
    assert weights[1] == pytest.approx(2 * params / GIB, rel=0.01)
    assert weights[2] < 0.6 * weights[1]
    assert of("zero(3)", gpus=8).allocated_gib < stages[2].allocated_gib


@pytest.mark.launch
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_states_are_deepspeeds_own(stage: int) -> None:
    """Weights, gradients and optimizer state of a rank are those of DeepSpeed's estimator, but for the update's own."""
    found = of(f"zero({stage})")
    states = zero_states(found.params, stage=stage, gpus=4)
    held = sum(found.breakdown[part] for part in ("weights", "gradients", "optimizer"))
    passing = 4 * found.params / 4  # the float32 gradients, which the estimator counts as a state
    assert held * GIB == pytest.approx(states.card - passing, rel=0.15)


@pytest.mark.launch
def test_offloading_moves_the_states_to_the_host() -> None:
    """Offload leaves 16-bit weights, or next to nothing, on the card; the host holds a rank's share."""
    optimizer, everything = of("zero(3, offload='optimizer')"), of("zero(3, offload='all')")
    assert optimizer.breakdown["optimizer"] == everything.breakdown["optimizer"] == 0
    assert optimizer.host_gib * GIB == pytest.approx(18 * optimizer.params / 4, rel=0.01)
    assert everything.host_gib > optimizer.host_gib
    assert everything.breakdown["weights"] < optimizer.breakdown["weights"]


@pytest.mark.launch
def test_ddp_has_a_second_copy_of_the_gradients() -> None:
    """Several GPUs without sharding: buckets as large as the gradients, and the optimizer state twice on resuming."""
    one, two = of(gpus=1), of(gpus=2)
    assert two.allocated_gib - one.allocated_gib == pytest.approx(4 * one.params / GIB, rel=0.01)
    assert two.moments["resume"] > one.moments["resume"] + one.breakdown["optimizer"]
    assert any("DDP" in sentence for sentence in two.assumptions)


@pytest.mark.launch
def test_accumulating_keeps_gradients_between_micro_batches() -> None:
    """Stage 1 keeps all gradients over the micro-batches of an update, stage 2 a share of them."""
    (one, many), (one_2, many_2) = (
        [of(f"zero({stage})", f"gradient_accumulation({steps})").moments["forward"] for steps in (1, 2)]
        for stage in (1, 2)
    )
    params = of("zero(1)").params
    assert (many - one) * GIB == pytest.approx(2 * params, rel=0.02)
    assert (many_2 - one_2) * GIB == pytest.approx(2 * params / 4, rel=0.02)

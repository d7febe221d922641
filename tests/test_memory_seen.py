"""What newcomers and reviewers found wrong in the estimate, and how it is now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient import Batch, Machine, estimate, make_plan
from hf_efficient.memory import optimizers
from hf_efficient.memory.quantize import written_out
from hf_efficient.memory.record import Recorder, rounded
from hf_efficient.memory.results import GIB, Estimate
from hf_efficient.memory.weights import Weight
from hf_efficient.promises.heads import HEADS, configuration

pytestmark = pytest.mark.launch  # seconds in all
SIZES: dict[str, Any] = {
    "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4,
}  # fmt: skip
BATCH = Batch(size=1, seq_len=64)


def of(*names: str, batch: Batch = BATCH, config: Any = None, **others: Any) -> Estimate:
    """Estimate a plan on a small Llama."""
    return estimate(
        make_plan(*names), config or configuration("LlamaConfig", "LlamaForCausalLM", **SIZES), batch=batch, **others
    )


@pytest.mark.launch
def test_fsdp_reduces_the_gradients_of_adapters_alone() -> None:
    """Under FSDP2 frozen weights have no gradient: what clipping adds to the states are the adapters' own."""
    found = of("bf16", "lora", "fsdp", gpus=2)
    added = (found.moments["clipping"] - found.moments["resume"]) * GIB
    assert added < 3 * 4 * found.trainable_params  # shards of them in float32, and what clipping takes


@pytest.mark.launch
def test_a_fused_loss_keeps_the_logits_of_evaluation() -> None:
    """Liger leaves logits out while it trains, and computes them in evaluation: the same with and without."""
    batch = Batch(size=1, seq_len=64, eval_size=4, eval_rows=200)
    plain, fused = (of("bf16", *names, batch=batch).moments["evaluation"] for names in ((), ("fused_loss",)))
    assert fused == pytest.approx(plain, rel=0.001)


@pytest.mark.slow
def test_an_evaluation_that_does_not_fit_has_its_own_remedy() -> None:
    """Where kept logits do not fit, moving them to the host does; a fused loss, which keeps them too, is not named."""
    batch = Batch(size=1, seq_len=64, eval_size=4, eval_rows=8000)
    changes = of("bf16", batch=batch, machine=Machine.named("rtx3060-12gb")).changes
    assert changes[0].startswith("evaluation: needs")
    assert not any(change.startswith("fused_loss:") for change in changes)


@pytest.mark.launch
def test_zeros_update_flattens_before_it_converts() -> None:
    """Stage 2 makes a flat copy of a rank's gradients and a float32 one, 6 bytes each, at once."""
    found = of("bf16", "activation_checkpointing", "zero(2)", gpus=2)
    passing = (found.moments["optimizer"] - found.moments["resume"]) * GIB - 2 * found.params / 2
    assert passing == pytest.approx(6 * found.params / 2, rel=0.02)


@pytest.mark.launch
def test_quantized_weights_are_whole_on_every_rank() -> None:
    """ZeRO-3 does not partition a model in 4 bits: more ranks leave its weights as they are, and that is said."""
    two, eight = (of("bf16", "qlora", "zero(3)", gpus=gpus) for gpus in (2, 8))
    assert two.breakdown["weights"] == eight.breakdown["weights"]
    assert any("4-bit weights under DeepSpeed" in sentence for sentence in two.assumptions)


def test_cards_that_cannot_run_the_plan_are_not_named() -> None:
    """bf16 needs capability 8.0: no T4 is recommended, whatever fits it; a named card says what it lacks."""
    cards = {card.gpu: card.fits for card in of("bf16").cards}
    assert not cards["T4"]
    assert cards["RTX 3090"]
    assert {card.gpu: card.fits for card in of("fp16").cards}["T4"]
    assert any("T4 lacks" in sentence for sentence in of("bf16", machine=Machine.named("t4")).assumptions)


def test_an_evaluation_may_be_the_peak() -> None:
    """Where the evaluation is higher than the step, it is what is allocated, by parts, and the peak is named so."""
    found = of("bf16", batch=Batch(size=1, seq_len=64, eval_size=64, eval_rows=4000))
    assert found.allocated_gib == found.moments["evaluation"]
    assert sum(found.breakdown.values()) == pytest.approx(found.allocated_gib)
    assert found.peak_at == "the kept logits of the evaluation"


def test_a_wave_has_the_length_that_is_asked_for() -> None:
    """Sound as a wave needs its length in samples, and a longer one takes more."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = configuration("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", **sizes)
    short, long = (of(config=config, batch=Batch(size=2, seq_len=length)) for length in (16_000, 64_000))
    assert long.breakdown["activations"] > 3 * short.breakdown["activations"]
    with pytest.raises(ValueError, match="in samples"):
        of(config=config, batch=Batch(size=2))


WITHOUT_MEANING = {
    "a target of a decoder": (None, Batch(size=1, seq_len=8, target_len=8), "target_len"),
    "a length of an image": (HEADS["vit"], Batch(size=1, seq_len=8), "leave seq_len"),
    "a batch that nobody has": (None, Batch(size=10**9, seq_len=1000), "more than any GPU holds"),
}


@pytest.mark.parametrize("what", WITHOUT_MEANING)
def test_what_has_no_meaning_is_refused(what: str) -> None:
    """Lengths that a head has not are refused, and so are batches beyond all bounds."""
    make, batch, message = WITHOUT_MEANING[what]
    with pytest.raises(ValueError, match=message):
        of(config=make() if make else None, batch=batch)


def test_objects_of_the_wrong_kind_get_a_sentence() -> None:
    """A number for a batch, a name for a machine and anything for a model are refused with what to pass."""
    plan = make_plan()
    with pytest.raises(ValueError, match=r"pass Batch\(size=4"):
        estimate(plan, "x", batch=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Machine\.named\('t4'\)"):
        estimate(plan, "x", batch=BATCH, machine="t4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no model"):
        estimate(plan, 42, batch=BATCH)


def test_what_does_not_train_is_refused() -> None:
    """A module whose weights are all frozen has no step."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(configuration("LlamaConfig", "LlamaForCausalLM", **SIZES)).requires_grad_(False)
    with pytest.raises(ValueError, match="Nothing of this model trains"):
        of(config=model)
    assert model.dtype == torch.float32


def test_two_sixteen_bit_dtypes_do_not_meet() -> None:
    """fp16 with 4-bit weights that compute in bfloat16 is refused with the trick's spelling."""
    with pytest.raises(ValueError, match=r"write qlora\(compute_dtype='float16'\)"):
        of("fp16", "qlora")


def test_a_missing_dtype_is_said() -> None:
    """A configuration without a dtype is taken for float32, and the estimate says so."""
    assert any("names no dtype" in sentence for sentence in of("lora").assumptions)
    assert not any("names no dtype" in sentence for sentence in of("bf16").assumptions)


def test_odd_splits_are_padded() -> None:
    """Three ranks hold more than a third each of matrices whose first dimension three does not divide."""
    found = of("bf16", "fsdp", gpus=3)
    assert 3 * found.breakdown["weights"] * GIB > 4 * found.params


def test_a_frozen_head_gets_no_gradient_from_the_fused_loss() -> None:
    """With adapters the head does not train, and the fused loss makes no gradient as large as it."""
    config = configuration("LlamaConfig", "LlamaForCausalLM", **SIZES | {"vocab_size": 64_000})
    found = of("bf16", "lora", "fused_loss", config=config)
    assert (found.moments["backward"] - found.moments["resume"]) * GIB < 64_000 * 512 * 2


def test_clipping_sums_in_pieces() -> None:
    """The norms of one large gradient are summed in pieces of 65,536 elements, four bytes each."""
    update = optimizers.update("sgd", [Weight((10_000_000,), torch.float32)], mode=FakeTensorMode(), max_grad_norm=1.0)
    assert max(event.size for event in update.events if event.phase == "clipping") == rounded(153 * 4)


def test_writing_out_a_packed_weight_takes_its_constants_and_a_cast() -> None:
    """Double-quantized constants become float32 in passing, and a weight of another dtype is cast when written."""
    with FakeTensorMode(), Recorder() as recorder:
        packed = torch.empty(64, dtype=torch.uint8)
        state = SimpleNamespace(absmax=packed, nested=True, shape=(64, 64), dtype=torch.bfloat16)
        written_out(state, torch.float32)
    sizes = [event.size for event in recorder.events if event.size > 0]
    assert sizes == [rounded(size) for size in (64, 64 * 4, 64 * 64 * 2, 64 * 64 * 4)]

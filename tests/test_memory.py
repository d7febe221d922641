"""The estimate: what it counts, what moves it, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedConfig

from hf_efficient import Batch, Machine, estimate, make_plan
from hf_efficient.memory.results import GIB, PARTS, Estimate
from hf_efficient.promises.heads import HEADS, configuration

BATCH = Batch(size=4, seq_len=256)


def small(layers: int = 2, **fields: Any) -> PreTrainedConfig:
    """Return a small Llama."""
    sizes = {
        "vocab_size": 8000, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": layers, "max_position_embeddings": 1024,
    }  # fmt: skip
    return configuration("LlamaConfig", "LlamaForCausalLM", **sizes | fields)


def of(*names: Any, config: Any = None, batch: Batch = BATCH, **others: Any) -> Estimate:
    """Estimate a plan on a small Llama."""
    return estimate(make_plan(*names), config or small(), batch=batch, **others)


def test_the_parts_add_up_and_the_states_are_counted() -> None:
    """float32 weights are 4 bytes per parameter, AdamW's state 8; the parts add up to the whole, and so do moments."""
    found = of("bf16")
    assert sum(found.breakdown.values()) == pytest.approx(found.allocated_gib)
    assert found.breakdown["weights"] * GIB == pytest.approx(4 * found.params, rel=0.01)
    assert found.breakdown["optimizer"] * GIB == pytest.approx(8 * found.params, rel=0.01)
    assert found.allocated_gib == pytest.approx(max(found.moments[p] for p in ("forward", "backward", "clipping")))
    assert (
        found.params
        == found.trainable_params
        == sum(p.numel() for p in AutoModelForCausalLM.from_config(small()).parameters())
    )


def test_a_module_a_config_and_a_folder_are_the_same_model(tmp_path: Path) -> None:
    """A module of yours, its configuration and its folder give one estimate; the module keeps its weights."""
    model = AutoModelForCausalLM.from_config(small())
    before = model.lm_head.weight.clone()
    small().save_pretrained(tmp_path)
    plan = make_plan("bf16")
    found = [estimate(plan, each, batch=BATCH).allocated_gib for each in (model, small(), tmp_path, str(tmp_path))]
    assert len(set(found)) == 1
    assert torch.equal(model.lm_head.weight, before)
    assert not model.lm_head.weight.is_meta


LESS = {
    "activation_checkpointing": (("bf16",), ("bf16", "activation_checkpointing")),
    "every layer rather than every second": (
        ("bf16", "activation_checkpointing(every_n_layers=2)"), ("bf16", "activation_checkpointing"),
    ),
    "sdpa rather than eager": (("bf16", "attention('eager')"), ("bf16", "attention('sdpa')")),
    "flash rather than eager": (("bf16", "attention('eager')"), ("bf16", "attention('flash_attention_2')")),
    "autocast halves activations": ((), ("bf16",)),
    "8-bit moments": (("bf16",), ("bf16", "adamw_8bit")),
    "paged moments leave the card": (("bf16", "adamw_8bit"), ("bf16", "adamw_8bit(paged=True)")),
    "a loss without logits": (("bf16",), ("bf16", "fused_loss")),
    "adapters": (("bf16",), ("bf16", "lora")),
    "4-bit weights": (("bf16", "lora"), ("bf16", "qlora")),
    "one micro-batch per update": (("bf16", "gradient_accumulation(2)"), ("bf16", "gradient_accumulation(1)")),
}  # fmt: skip


@pytest.mark.launch
@pytest.mark.parametrize("why", LESS)
def test_a_trick_saves_what_it_says(why: str) -> None:
    """What a trick saves is in the estimate."""
    more, less = (of(*names, config=small(layers=4), batch=Batch(size=8, seq_len=512)) for names in LESS[why])
    assert less.allocated_gib < 0.995 * more.allocated_gib


@pytest.mark.launch
def test_offloaded_inputs_go_to_the_host() -> None:
    """Checkpointing with offload moves one input per layer to host memory: rows x length x width x 4 bytes each."""
    kept = of("bf16", "activation_checkpointing", config=small(layers=20))
    moved = of("bf16", "activation_checkpointing(offload=True)", config=small(layers=20))
    each = BATCH.size * (BATCH.seq_len or 0) * 256
    assert kept.host_gib == 0
    assert moved.host_gib * GIB == pytest.approx(20 * each * 4, rel=0.01)
    assert moved.moments["forward"] < kept.moments["forward"]


BIGGER = {
    "size": {"size": 8},
    "seq_len": {"seq_len": 512},
    "padding": {"padding": True},
    "eval_size": {"eval_size": 64},
    "eval_rows": {"eval_size": 4, "eval_rows": 2000},
}


@pytest.mark.launch
@pytest.mark.parametrize("name", BIGGER)
def test_every_field_of_the_batch_counts(name: str) -> None:
    """More rows, longer rows, padding and an evaluation take more."""
    fields = {"size": 4, "seq_len": 256}
    before, after = of("bf16", batch=Batch(**fields)), of("bf16", batch=Batch(**fields | BIGGER[name]))
    assert max(after.moments.values()) > 1.001 * max(before.moments.values())


@pytest.mark.launch
def test_a_longer_target_takes_more() -> None:
    """An encoder-decoder model's targets have a length of their own."""
    sizes = {
        "d_model": 128,
        "d_ff": 256,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 8000,
        "decoder_start_token_id": 0,
    }
    config = configuration("T5Config", "T5ForConditionalGeneration", **sizes)
    short, long = (of("bf16", config=config, batch=Batch(size=4, seq_len=64, target_len=t)) for t in (16, 512))
    assert long.allocated_gib > 1.5 * short.allocated_gib


@pytest.mark.launch
def test_kept_logits_are_those_of_all_rows_until_they_leave() -> None:
    """With metrics all logits stay on the card; `evaluation(host_every=1)` keeps those of one batch."""
    batch = Batch(size=1, seq_len=128, eval_size=4, eval_rows=1000)
    kept, leaving = of("bf16", batch=batch), of("bf16", "evaluation", batch=batch)
    assert kept.moments["evaluation"] - kept.moments["resume"] > 1000 * 128 * 8000 * 4 / GIB
    assert leaving.moments["evaluation"] < 0.1 * kept.moments["evaluation"]


@pytest.mark.launch
def test_the_peak_has_a_name() -> None:
    """Large vocabularies peak in the loss, long rows in the layers, large models in the optimizer step."""
    assert of("bf16", config=small(vocab_size=100_000)).peak_at == "the fp32 logits of the loss"
    assert "layer" in of(config=small(vocab_size=64, layers=8), batch=Batch(size=16, seq_len=512)).peak_at
    assert (
        of("adafactor", config=small(hidden_size=1024), batch=Batch(size=1, seq_len=8)).peak_at == "the optimizer step"
    )


def test_the_card_decides_what_fits() -> None:
    """With a machine there is a verdict and a margin; without one, the cards that would do, the smallest first."""
    named = of("bf16", machine=Machine.named("t4"))
    assert named.fits
    assert named.capacity_gib == Machine.named("t4").memory_gib
    assert not named.cards
    free = of("bf16")
    assert free.fits is None
    assert free.cards[0].gpu
    assert json.dumps(free.row())


@pytest.mark.launch
def test_older_cards_have_no_flash_kernel() -> None:
    """Before Ampere, torch's attention takes the efficient kernel, which keeps grouped keys and values repeated."""
    config = small(num_key_value_heads=1, layers=6)
    old, new = (of("fp16", config=config, machine=Machine.named(gpu)) for gpu in ("t4", "a100-40gb"))
    assert old.allocated_gib > new.allocated_gib


@pytest.mark.slow
def test_changes_make_it_fit() -> None:
    """Where it does not fit, up to three changes are named that were tried and do; rows per update stay."""
    batch = Batch(size=64, seq_len=1024)
    machine = Machine.named("rtx3060-12gb")
    found = of("bf16", config=small(vocab_size=64_000, layers=4), batch=batch, machine=machine)
    assert found.fits is False
    assert 1 <= len(found.changes) <= 3
    assert any("batch" in change for change in found.changes)


@pytest.mark.launch
def test_the_effective_batch_is_kept() -> None:
    """A plan with an effective batch accumulates; one that cannot be whole is refused."""
    names = ("bf16", "batch_size(4, effective=16)")
    assert of(*names).allocated_gib > of("bf16").allocated_gib
    with pytest.raises(ValueError, match="effective"):
        of(*names, batch=Batch(size=3, seq_len=256))


EIGHT = {"load_in_8bit": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"batch": Batch(size=0, seq_len=8)}, r"size=0 is no number of rows"),
    "length": ({"batch": Batch(size=1, seq_len=-8)}, r"seq_len=-8 is no number"),
    "no length": ({"batch": Batch(size=1)}, r"pass seq_len"),
    "gpus": ({"gpus": 0}, r"gpus=0 is no number of GPUs"),
    "plan": ({"plan": "bf16"}, r"make_plan\('bf16'\)"),
    "4 bits": ({"prepared_for_kbit": True}, r"add qlora"),
    "8 bits": ({"plan": make_plan("qlora").override("model", {"quantization_config": EIGHT}, by="you")}, r"take qlora"),
    "optimizer": ({"plan": make_plan().override("trainer", {"optim": "lomo"}, by="you")}, r"'lomo' has no estimate"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(what: str) -> None:
    """Impossible batches, plans and optimizers say what, why and what to do."""
    keywords, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        estimate(keywords.pop("plan", make_plan("bf16")), small(), **{"batch": BATCH, **keywords})


def test_learned_positions_have_an_end() -> None:
    """GPT-2 has 1024 learned positions, RoBERTa 512 behind its padding; longer rows are refused, not rotary ones."""
    with pytest.raises(ValueError, match="1024 learned positions"):
        of("bf16", config=HEADS["gpt2"](), batch=Batch(size=1, seq_len=1025))
    with pytest.raises(ValueError, match="512 learned positions"):
        of("bf16", config=HEADS["roberta"](), batch=Batch(size=1, seq_len=513))


def test_a_forward_pass_that_reads_its_activations_is_refused() -> None:
    """A model that decides by its own activations says which operation it was and where."""

    class Deciding(LlamaForCausalLM):
        def forward(self, **batch: Any) -> Any:
            out = super().forward(**batch)
            return out if out.loss > 1 else None

    with pytest.raises(ValueError, match=r"decides by its data what it computes \(aten.*test_memory.py, line"):
        estimate(make_plan(), Deciding(small()), batch=BATCH)


SECONDS = ("qwen3-moe-balanced", "gemma3", "smolvlm", "mixtral", "qwen3", "modernbert", "roberta")
"""Heads that take several, or are close to another."""


@pytest.mark.parametrize(
    "head", [pytest.param(head, marks=pytest.mark.slow if head in SECONDS else pytest.mark.launch) for head in HEADS]
)
def test_every_head_has_an_estimate(head: str) -> None:
    """Every head of the matrix, at its real size, has an estimate, which is the same again."""
    length = None if head in ("vit", "whisper") else 128
    found = [of("bf16", config=HEADS[head](), batch=Batch(size=2, seq_len=length, eval_size=2)) for _ in range(2)]
    assert found[0].allocated_gib == found[1].allocated_gib
    assert found[0].breakdown["weights"] * GIB == pytest.approx(4 * found[0].params, rel=0.02)
    assert set(found[0].breakdown) == set(PARTS)

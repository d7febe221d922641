"""Packed documents never see each other: the gradient is that of the same documents one by one, through every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    TrainerCallback,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

import hf_efficient as hf
from hf_efficient.plan import Conflict, Plan

VARIANTS = ["packing('bfd_split')"]
EXACT = 1e-5
ROW = 64

SMALL: dict[str, Any] = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GATED = SMALL | {"intermediate_size": 128, "num_key_value_heads": 1, "head_dim": 32}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**GATED)),
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL, n_positions=ROW, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GATED)),
    # One of the two layers looks at the last few tokens only.
    "Gemma 3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**GATED, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    ),
}
SOME = [name if name == "Llama" else pytest.param(name, marks=pytest.mark.launch) for name in MODELS]
"""All of them; `make test-fast` has time for one."""


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Twenty documents of 2 to 29 tokens."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 30, (20,), generator=random).tolist()
    return [torch.randint(3, 128, (length,), generator=random).tolist() for length in lengths]


@pytest.fixture
def tokenizer(tiny: Path) -> Any:
    """The tokenizer that says how to pad."""
    return AutoTokenizer.from_pretrained(tiny)


def make(name: str) -> Any:
    """Return the same new model every time."""
    set_seed(0)
    return MODELS[name]()


def one_by_one(model: Any, documents: list[list[int]]) -> torch.Tensor:
    """Return the gradient of the mean loss per predicted token, each document alone, by torch and nothing else."""
    predicted = sum(len(document) - 1 for document in documents)
    for document in documents:
        tokens = torch.tensor([document])
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
        (nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum") / predicted).backward()
    return gradient(model)


def gradient(model: Any) -> torch.Tensor:
    """Return the gradient as one vector in 64 bits."""
    return torch.cat([weight.grad.double().flatten() for weight in model.parameters()])


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the relative L2 distance."""
    return float((ours - theirs).norm() / theirs.norm())


class Look(TrainerCallback):
    """Keep the gradient that the optimizer sees."""

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        self.seen = gradient(model)


QUIET = {"max_steps": 1, "per_device_train_batch_size": 40, "max_grad_norm": 0.0, "disable_tqdm": True,
         "save_strategy": "no"}  # fmt: skip


def by_trainer(plan: Plan, model: Any, rows: Dataset, collate: Any, folder: Path) -> torch.Tensor:
    """Return the gradient of the first update of Trainer."""
    look = Look()
    args = hf.training_arguments(plan, output_dir=folder, **QUIET)
    Trainer(model, args, collate, rows, callbacks=[look]).train()
    return look.seen


def by_loop(plan: Plan, model: Any, rows: Dataset, collate: Any, folder: Path) -> torch.Tensor:
    """Return the gradient of the first update of a hand-written loop, in micro-batches of three rows."""
    accelerator = hf.make_accelerator(plan, gradient_accumulation_steps=20)
    loader = DataLoader(rows, collate_fn=collate, batch_size=3)
    prepared, loader = accelerator.prepare(hf.prepare_model(plan, model), loader)
    (window,) = hf.windows(loader, accelerator)
    for batch in window:
        window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
    return gradient(model)


DOORS = pytest.mark.parametrize("door", [by_trainer, by_loop])


@DOORS
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.launch)])
@pytest.mark.parametrize("name", SOME)
def test_documents_never_leak(
    name: str, attention: str, door: Any, documents: list[list[int]], tokenizer: Any, tmp_path: Path
) -> None:
    """The gradient over packed rows is that of the same documents one by one."""
    plan = hf.make_plan("packing", "pad_to_multiple")
    model = make(name)
    model.set_attn_implementation(attention)
    rows = hf.pack(plan, Dataset.from_dict({"input_ids": documents, "labels": documents}), max_length=ROW)
    assert len(rows) < len(documents) / 3
    found = distance(
        door(plan, model, rows, hf.make_collator(plan, tokenizer, model), tmp_path), one_by_one(make(name), documents)
    )
    print(f"\n{name} {attention} {door.__name__}: {found:.1e}")
    assert found < EXACT


@DOORS
@pytest.mark.parametrize("name", SOME)
def test_a_mask_of_ones_leaks(name: str, door: Any, documents: list[list[int]], tokenizer: Any, tmp_path: Path) -> None:
    """With an attention mask of ones beside it, the same comparison fails: it would notice a leak."""
    plan, model = hf.make_plan("packing"), make(name)
    rows = hf.pack(plan, Dataset.from_dict({"input_ids": documents, "labels": documents}), max_length=ROW)
    collate = hf.make_collator(plan, tokenizer, model)

    def with_mask(batch: Any) -> dict[str, Any]:
        packed = collate(batch)
        return {**packed, "attention_mask": torch.ones_like(packed["input_ids"])}

    assert distance(door(plan, model, rows, with_mask, tmp_path), one_by_one(make(name), documents)) > 100 * EXACT


def test_sft_trainer_packs_as_we_do(documents: list[list[int]], tokenizer: Any, tmp_path: Path) -> None:
    """SFTTrainer with the plan's SFTConfig packs by itself and has the gradient of the documents one by one."""
    look, model = Look(), make("Llama")
    args = hf.training_arguments(hf.make_plan("packing"), SFTConfig, output_dir=tmp_path, max_length=ROW, **QUIET)
    trainer = SFTTrainer(
        model,
        args,
        train_dataset=Dataset.from_dict({"input_ids": documents}),
        processing_class=tokenizer,
        callbacks=[look],
    )
    assert len(trainer.train_dataset) < len(documents) / 3
    trainer.train()
    assert distance(look.seen, one_by_one(make("Llama"), documents)) < EXACT


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (BloomForCausalLM, "takes none: leave it out"),
        (MambaForCausalLM, "takes none: leave it out"),
    ],
)
def test_models_without_positions_are_refused(model: Any, why: str, tokenizer: Any) -> None:
    """A model whose positions cannot restart is refused before it trains."""
    config = {BloomForCausalLM: BloomConfig, MambaForCausalLM: MambaConfig}[model]
    with pytest.raises(ValueError, match=why):
        hf.make_collator(hf.make_plan("packing"), tokenizer, model(config(**SMALL, state_size=8)))


def test_a_model_that_mixes_documents_is_refused(tokenizer: Any) -> None:
    """The trial on two documents notices a model that takes positions and mixes them nevertheless."""

    class Mixing(LlamaForCausalLM):
        def forward(self, input_ids: Any, position_ids: Any = None, **keywords: Any) -> Any:
            return super().forward(input_ids, attention_mask=torch.ones_like(input_ids), position_ids=position_ids)

    with pytest.raises(ValueError, match=r"packing would mix documents in Mixing: .* logits are [\d.]+% off"):
        hf.make_collator(hf.make_plan("packing"), tokenizer, Mixing(LlamaConfig(**GATED)))
    with pytest.raises(ValueError, match="call make_collator"):
        hf.make_collator(hf.make_plan("packing"), tokenizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_small_leak_is_noticed_in_any_dtype(dtype: torch.dtype, tokenizer: Any) -> None:
    """Documents that see a hundredth of each other are noticed, also where 16 bits round as much; dropout is not."""

    class Leaking(LlamaForCausalLM):
        def forward(self, input_ids: Any, position_ids: Any = None, **keywords: Any) -> Any:
            output = super().forward(input_ids, position_ids=position_ids, **keywords)
            output.logits = output.logits + 0.01 * output.logits.mean(dim=1, keepdim=True)
            return output

    sound = LlamaForCausalLM(LlamaConfig(**GATED, attention_dropout=0.5)).to(dtype).train()
    hf.make_collator(hf.make_plan("packing"), tokenizer, sound)
    with pytest.raises(ValueError, match="packing would mix documents in Leaking"):
        hf.make_collator(hf.make_plan("packing"), tokenizer, Leaking(LlamaConfig(**GATED)).to(dtype))


def test_what_cannot_be_tried_is_said(tokenizer: Any) -> None:
    """A model whose weights are not there yet is not tried, and a warning says so."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**GATED))
    with pytest.warns(UserWarning, match="packing was not tried on LlamaForCausalLM, since its weights are sharded"):
        hf.make_collator(hf.make_plan("packing"), tokenizer, model)


def test_the_trial_leaves_the_model_alone(tokenizer: Any) -> None:
    """Mode, random numbers and weights are as before; the cache alone is off."""
    model = make("Llama").train()
    model.model.norm.eval()
    before, state = torch.random.get_rng_state(), {key: value.clone() for key, value in model.state_dict().items()}
    hf.make_collator(hf.make_plan("packing"), tokenizer, model)
    assert model.training
    assert not model.model.norm.training
    assert model.config.use_cache is False
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_sft_takes_what_it_can_work_with(tmp_path: Path) -> None:
    """SFTConfig keeps the column of lengths by itself, takes the strategy, and packing=False takes the trick out."""
    plan = hf.make_plan("packing('bfd_split')")
    args = hf.training_arguments(plan, SFTConfig, output_dir=tmp_path, remove_unused_columns=True)
    assert (args.packing, args.packing_strategy, args.remove_unused_columns) == (True, "bfd_split", True)
    args = hf.training_arguments(plan, SFTConfig, output_dir=tmp_path, packing=False)
    assert (args.packing, args.packing_strategy) == (False, "bfd")


@pytest.mark.parametrize("field", ["use_cache", "remove_unused_columns"])
def test_what_would_make_documents_leak_is_a_conflict(field: str, tmp_path: Path) -> None:
    """A field of yours that packing cannot work with stops with both names and the reason."""
    with pytest.raises(Conflict, match=f"packing needs {field}=False, since .*, and you pass True"):
        hf.training_arguments(hf.make_plan("packing"), output_dir=tmp_path, **{field: True})


def test_long_documents_are_cut_or_split(documents: list[list[int]]) -> None:
    """bfd drops what is longer than a row, bfd_split goes on in another document; neither loses a short one."""
    data = Dataset.from_dict(
        {"input_ids": [*documents, list(range(3, 103))], "labels": [*documents, list(range(3, 103))]}
    )
    tokens = {spelling: sum(map(len, hf.pack(hf.make_plan(spelling), data, max_length=ROW)["input_ids"]))
              for spelling in ("packing", "packing('bfd_split')")}  # fmt: skip
    short = sum(map(len, documents))
    assert tokens == {"packing": short + ROW, "packing('bfd_split')": short + 100}


def test_a_head_over_whole_rows_is_refused(tokenizer: Any) -> None:
    """A classifier of rows cannot train on rows of several documents, and says so."""
    config = BertConfig(**SMALL, intermediate_size=64)
    with pytest.raises(ValueError, match="made for causal language models"):
        hf.make_collator(hf.make_plan("packing"), tokenizer, BertForSequenceClassification(config))


def test_padding_is_no_document(documents: list[list[int]]) -> None:
    """Rows that were padded before are packed without their padding, labels included."""
    padded = [(document + [0] * 30)[:30] for document in documents]
    masks = [[1] * len(document) + [0] * (30 - len(document)) for document in documents]
    data = Dataset.from_dict({"input_ids": padded, "labels": padded, "attention_mask": masks})
    rows = hf.pack(hf.make_plan("packing"), data, max_length=ROW)
    assert sorted(map(len, rows["input_ids"])) != [30] * len(rows)
    assert sum(map(sum, rows["input_ids"])) == sum(map(sum, documents))
    assert sum(map(len, rows["input_ids"])) == sum(map(len, documents))
    assert rows["labels"] == rows["input_ids"]


@pytest.mark.parametrize(
    ("rows", "length", "sentence"),
    [
        ({"input_ids": [[3, 4]], "seq_lengths": [[2]]}, 8, "packed already"),
        ({"text": ["one"]}, 8, "pack needs a column input_ids, and the data have text"),
        ({"input_ids": [[], []]}, 8, "every row is empty"),
        ({"input_ids": [[3, 4]], "labels": [1]}, 8, "a list of numbers per row in labels, and the first row has 1"),
        ({"input_ids": [[3, 4]]}, 0, "max_length must be a whole number of at least 2 tokens, not 0"),
        ({"input_ids": [[3, 4]]}, 8.0, "max_length must be"),
        ([[3, 4]], 8, "pack takes a datasets.Dataset, one split of it, and not a list"),
    ],
)
def test_what_cannot_be_packed_is_one_sentence(rows: Any, length: Any, sentence: str) -> None:
    """Data of another kind, packed rows and lengths of nothing are refused by name."""
    data = Dataset.from_dict(rows) if isinstance(rows, dict) else rows
    with pytest.raises(ValueError, match=sentence):
        hf.pack(hf.make_plan("packing"), data, max_length=length)


def test_empty_rows_are_left_out(documents: list[list[int]]) -> None:
    """A row without tokens among others packs as if it were not there."""
    plan = hf.make_plan("packing")
    with_empty, without = (
        hf.pack(plan, Dataset.from_dict({"input_ids": rows}), max_length=ROW)["input_ids"]
        for rows in ([[], *documents, []], documents)
    )
    assert with_empty == without

"""What docs/left_out.md says about the installed stack is still so; a row that has become false is to be deleted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames, ParallelMode

from hf_efficient.tricks import catalogue

PAGE = Path(__file__).parents[1] / "docs" / "left_out.md"
CHECKED = re.compile(r"^\| `([^`]+)`[^|]* \* \|")
FIELDS = {field.name: field.default for field in fields(TrainingArguments)}
OPTIMIZERS = {name.value for name in OptimizerNames}


def makes_optimizer(name: str, steps: int = 1) -> Any:
    """Return the optimizer that Trainer makes under a name, with accumulation or without."""
    pytest.importorskip("apollo_torch" if "apollo" in name else "galore_torch")
    arguments = SimpleNamespace(
        optim=OptimizerNames(name), optim_args=None, optim_target_modules=["linear"], learning_rate=1e-3,
        weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
        parallel_mode=ParallelMode.NOT_PARALLEL, gradient_accumulation_steps=steps,
    )  # fmt: skip
    model = torch.nn.ModuleDict({"linear": torch.nn.Linear(16, 16)})
    make, keywords = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    optimizer = make(keywords.pop("params", model.parameters()), **keywords)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    return optimizer.step()


def refuses_accumulation(name: str) -> bool:
    """Say whether a layerwise optimizer refuses gradient accumulation."""
    with pytest.raises(ValueError, match="does not support gradient accumulation"):
        makes_optimizer(name, steps=2)
    return True


def needs_cuda(name: str) -> bool:
    """Say whether an optimizer cannot be made without CUDA."""
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA"):
        makes_optimizer(name)
    return True


def evaluates(folder: Path, **arguments: Any) -> tuple[dict[str, float], torch.dtype]:
    """Return what an evaluation with metrics says, and the model's dtype after it."""
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    args = TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **arguments)
    model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = Trainer(model, args, eval_dataset=rows, compute_metrics=lambda seen: {"mine": 1.0})
    return trainer.evaluate(), model.dtype


def packs_wrapped() -> bool:
    """Say whether wrapped packing cuts a document and hands on no lengths."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    packed = trl.pack_dataset(datasets.Dataset.from_dict({"input_ids": [[1, 1, 1], [2, 2, 2]]}), 4, "wrapped")
    return packed.column_names == ["input_ids"] and packed["input_ids"][0] == [1, 1, 1, 2]


def accelerator_has(word: str) -> bool:
    """Say whether a keyword of Accelerator has `word` in it."""
    return any(word in name for name in inspect.signature(Accelerator).parameters)


def source_says(subject: Any, *words: str) -> bool:
    """Say whether all words are in the source of a function or class."""
    source = inspect.getsource(subject)
    return all(word in source for word in words)


HOLDS: dict[str, Callable[[Path], bool]] = {
    "muon": lambda _: not any("muon" in name for name in OPTIMIZERS),
    "adamw_apex_fused": lambda _: not any("apex" in name for name in OPTIMIZERS),
    "galore_adamw_8bit": lambda _: needs_cuda("galore_adamw_8bit"),
    "galore_adamw_layerwise": lambda _: refuses_accumulation("galore_adamw_layerwise"),
    "apollo_adamw_layerwise": lambda _: refuses_accumulation("apollo_adamw_layerwise"),
    "lomo": lambda _: source_says(Accelerator.backward, "lomo_backward"),
    "fp8": lambda _: not any("fp8" in name for name in FIELDS),
    "region": lambda _: not any("region" in name for name in FIELDS),
    "MSAMPRecipeKwargs": lambda _: source_says(Accelerator._prepare_msamp, "deprecated", "FutureWarning"),
    "fp16_opt_level": lambda _: "fp16_opt_level" not in FIELDS,
    "bf16_full_eval": lambda tiny: evaluates(tiny, bf16_full_eval=True)[1] == torch.bfloat16,
    "fsdp_config={'version': 1}": lambda _: source_says(TrainingArguments, "FSDP1 (", "is deprecated"),
    "torchdynamo": lambda _: "torchdynamo" not in FIELDS,
    "sharded_ddp": lambda _: "sharded_ddp" not in FIELDS,
    "auto_find_batch_size": lambda _: source_says(
        Trainer.train, "find_executable_batch_size(\n            self._inner_training_loop"
    ),
    "torch_empty_cache_steps": lambda _: "torch_empty_cache_steps" in FIELDS and not accelerator_has("cache"),
    "prediction_loss_only": lambda tiny: "eval_mine" not in evaluates(tiny, prediction_loss_only=True)[0],
    "activation_offloading": lambda _: "activation_offloading" not in FIELDS and not accelerator_has("offload"),
    "packing_strategy='wrapped'": lambda _: packs_wrapped(),
    "group_by_length": lambda _: "group_by_length" not in FIELDS,
    "train_sampling_strategy='batch_rebalance'": lambda _: source_says(Trainer._get_train_sampler, "rank=rank"),
    "ddp_find_unused_parameters": lambda _: source_says(Trainer._build_accelerator_args, "find_unused = not ("),
}
"""Row of the page -> whether what it says is so; the path is the tiny model's."""


def rows() -> dict[str, int]:
    """Return the rows of the page that are marked as checked, and their lines."""
    found = ((CHECKED.match(line), number) for number, line in enumerate(PAGE.read_text().split("\n"), 1))
    return {match[1]: number for match, number in found if match}


def test_every_marked_row_is_checked() -> None:
    """Each row marked * has its check here, and each check its row."""
    assert set(rows()) == set(HOLDS)


@pytest.mark.parametrize("row", HOLDS)
def test_row_still_holds(row: str, tiny: Path) -> None:
    """The installed stack is as the row says."""
    assert HOLDS[row](tiny), f"docs/left_out.md, line {rows()[row]}: {row} is no longer so; delete the line."


def test_nothing_left_out_is_set_by_a_trick() -> None:
    """No trick sets a field that the page leaves out."""
    left_out = set(re.findall(r"^\| `(\w+)`", PAGE.read_text(), flags=re.M)) & FIELDS.keys()
    assert len(left_out) > 10
    for make in catalogue().values():
        assert not left_out & make().trainer.keys()

"""What every trick and preset must be, over the discovered set: a newcomer's file is tested without asking."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import variants

from hf_efficient import describe
from hf_efficient.emit.fields import complete
from hf_efficient.emit.loop import make_accelerator
from hf_efficient.emit.trainer import training_arguments
from hf_efficient.merge import make_plan, parse
from hf_efficient.plan import Plan
from hf_efficient.presets import PRESETS
from hf_efficient.train.loop_fields import OPTIONS
from hf_efficient.trick import TARGETS, FunctionCall, MethodCall, Trick
from hf_efficient.tricks import catalogue

TRICKS = sorted(catalogue())
NAMES = [*TRICKS, *PRESETS]
GPU = variants.GPU
VARIANTS = variants.VARIANTS


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TrainingArguments and our needs believe in an Ampere GPU; what is built is never run."""
    import transformers.training_args as module

    from hf_efficient.emit import launcher, loop, trainer

    monkeypatch.setattr(launcher, "launched", lambda: True)

    monkeypatch.setattr(module, "is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.setattr(module, "is_torch_tf32_available", lambda: True)
    monkeypatch.setattr(trainer, "training_machine", lambda: GPU)
    monkeypatch.setattr(loop, "training_machine", lambda: GPU)
    monkeypatch.setattr(trainer, "without_accelerator", lambda machine: machine)


@pytest.mark.parametrize("name", TRICKS)
def test_it_is_named_after_its_file_and_returns_a_trick(name: str) -> None:
    """The file's function has the file's name, and its defaults make a trick with that name."""
    trick = catalogue()[name]()
    assert isinstance(trick, Trick)
    assert trick.name == name
    assert Path(inspect.getsourcefile(inspect.unwrap(catalogue()[name])) or "").stem == name


@pytest.mark.parametrize("name", TRICKS)
def test_its_docstring_says_what_when_when_not_and_what_is_published(name: str) -> None:
    """The first line says what you get; `Use it`, `Not` and `Published:` follow."""
    doc = inspect.cleandoc(catalogue()[name].__doc__ or "")
    first = doc.split("\n")[0]
    assert first.endswith("."), f"{name}: the first line of the docstring is one sentence"
    for word in ("Use it", "Not ", "Published: "):
        assert word in doc, f"{name}: the docstring has no part that begins with {word!r}"
    assert describe.figures(doc), f"{name}: `Published:` begins a paragraph of its own"


@pytest.mark.parametrize("name", [*TRICKS, *VARIANTS])
def test_its_facts_are_complete(name: str) -> None:
    """It saves and costs something, turns a knob in both doors or for the launcher, and `close` says how close."""
    trick = parse(name)
    assert isinstance(trick, Trick)
    assert trick.family
    assert trick.saves
    assert trick.costs
    assert (trick.within is not None) == (trick.numerics == "close"), (
        f"{name}: `within` belongs to `close`, and to it alone"
    )
    both = ("model", "peft", "collator", "env", "torch", "launch", "deepspeed")  # what either door reads
    trainer_door = any(getattr(trick, target) for target in ("trainer", "sft", *both))
    loop_targets = ("accelerator", "optimizer", "dataloader", "loop", *both)
    loop_door = trick.prepare is not None or any(getattr(trick, target) for target in loop_targets)
    assert trainer_door, f"{name} does nothing for Trainer"
    assert loop_door, f"{name} does nothing for a hand-written loop"
    assert all(need.otherwise for need in trick.needs), f"{name}: a need says what to do otherwise"


@pytest.mark.parametrize("name", [*TRICKS, *VARIANTS])
def test_it_turns_only_knobs_that_the_installed_stack_has(name: str) -> None:
    """Every key exists: fields, keywords, YAML keys, optimizer names, torch switches and DeepSpeed keys."""
    import torch
    from accelerate import Accelerator
    from accelerate.commands.config.config_args import ClusterConfig
    from peft import LoraConfig
    from transformers import PreTrainedModel, TrainingArguments
    from transformers.training_args import OptimizerNames
    from trl import SFTConfig

    trick = parse(name)
    assert isinstance(trick, Trick)
    known = {
        "trainer": {field.name for field in fields(TrainingArguments)},
        "accelerator": set(inspect.signature(Accelerator).parameters),
        "dataloader": set(inspect.signature(torch.utils.data.DataLoader).parameters),
        "launch": {field.name for field in fields(ClusterConfig)} | {"distributed_type"},
        "sft": {field.name for field in fields(SFTConfig)},
        "model": {"dtype", "attn_implementation", "quantization_config"},
        "collator": {"pad_to_multiple_of", "padding_free", "strategy"},
        "peft": {field.name for field in fields(LoraConfig)},
        "loop": {"max_grad_norm", "effective_batch", *OPTIONS},
    }
    for target, keys in known.items():
        assert set(getattr(trick, target)) <= keys, f"{name} sets what {target} does not have"
    if trick.optimizer:
        OptimizerNames(trick.optimizer["name"])
        assert trick.optimizer["name"] == trick.trainer["optim"], f"{name}: both doors take one optimizer"
    if isinstance(trick.prepare, MethodCall):
        assert hasattr(PreTrainedModel, trick.prepare.method)
    if isinstance(trick.prepare, FunctionCall):
        assert pkgutil.resolve_name(trick.prepare.path)
    assert set(trick.insists) <= set(trick.trainer)
    assert {place.partition(".")[0] for place in trick.decides} | set(trick.remarks) <= set(TARGETS)
    for key in trick.torch:
        assert hasattr(torch, key.split(".")[0])


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_its_arguments_are_accepted_and_held(name: str, tmp_path: Path) -> None:
    """TrainingArguments takes the plan, and reads back every value that it was given."""
    plan = make_plan(name, machine=GPU)
    args = training_arguments(plan, output_dir=str(tmp_path), **_cpu_only(plan))
    for key, value in complete(plan)["trainer"].items():
        held = getattr(args, key)
        held = {inner: held[inner] for inner in value} if key == "fsdp_config" else held  # it fills in the rest
        if key not in ("dataloader_pin_memory", "tf32"):  # use_cpu turns pinning off; see _cpu_only
            assert getattr(held, "value", held) == value, f"{name}: {key}"


DIFFERENT_IN_SFT = {
    "use_liger_kernel": "SFTTrainer's default loss makes no logits, and deprecates the field",
    "liger_kernel_config": "goes with it",
    "remove_unused_columns": "SFTTrainer knows the column of the packed lengths, Trainer does not",
}
"""Fields that a trick sets otherwise for SFTConfig -> why the training is the same nevertheless."""


@pytest.mark.usefixtures("ampere")
@pytest.mark.filterwarnings("ignore:fused_loss leaves use_liger_kernel off")
@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_sft_trains_as_trainer_does(name: str, tmp_path: Path) -> None:
    """SFTConfig has the value of TrainingArguments in every field that a trick can set."""
    from trl import SFTConfig

    plan = make_plan(name, machine=GPU)
    stock = training_arguments(plan, output_dir=str(tmp_path), **_cpu_only(plan))
    sft = training_arguments(plan, SFTConfig, output_dir=str(tmp_path), **_cpu_only(plan))
    knobs = {key for make in catalogue().values() for key in make().trainer} | {"gradient_checkpointing", "fp16"}
    different = {key for trick in plan.tricks for key in trick.sft if key in knobs}
    assert different <= DIFFERENT_IN_SFT.keys()
    assert {key: getattr(sft, key) for key in knobs - different} == {k: getattr(stock, k) for k in knobs - different}
    assert {key: getattr(sft, key) for key in plan["sft"]} == plan["sft"]


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("name", [name for name in [*NAMES, *VARIANTS] if "zero" not in name and "fsdp" not in name])
def test_its_accelerator_is_accepted(name: str) -> None:
    """Accelerator takes the plan's keywords; engines, which need a launcher, are in test_zero.py and test_fsdp.py."""
    plan = make_plan(name, machine=GPU)
    accelerator = make_accelerator(plan)
    steps = 16 if "effective" in name else plan["accelerator"].get("gradient_accumulation_steps", 1)
    assert accelerator.gradient_accumulation_steps == steps
    assert accelerator.mixed_precision == plan["accelerator"].get("mixed_precision", "no")


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_its_page_is_complete(name: str) -> None:
    """`explain` has text, settings and, for a trick, figures; only targets that exist are named."""
    page = describe.page(name, GPU)
    assert page["doc"]
    assert page["settings"]
    assert {setting["target"] for setting in page["settings"]} <= TARGETS.keys()
    assert page["figures"] or "tricks" in page


def _cpu_only(plan: Plan) -> dict[str, Any]:
    """Return what lets the arguments be built here: no GPU is opened, and offload and tf32 stay as set."""
    return {"use_cpu": True} | ({"tf32": None} if plan["trainer"].get("tf32") else {})

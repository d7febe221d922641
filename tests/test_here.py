"""What the launcher and the machine add to a plan, said with their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_efficient.emit.fields import argument_fields
from hf_efficient.emit.loop import dataloader_keywords, make_accelerator, settle_loop
from hf_efficient.emit.process import switch_process
from hf_efficient.emit.trainer import settle, training_arguments
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict
from hf_efficient.train.flags import default_preset


def test_a_machine_without_accelerator_says_so_itself() -> None:
    """`use_cpu` and unpinned memory are the machine's doing, not the plan's."""
    plan = settle(make_plan("safe"))
    assert plan.author("trainer", "use_cpu") == "machine"
    assert plan.author("trainer", "dataloader_pin_memory") == "machine"
    assert plan["trainer"]["dataloader_pin_memory"] is False


def test_use_cpu_never_reaches_the_accelerator() -> None:
    """`cpu=True` would drop DeepSpeed in silence, so the loop's settings never have it."""
    assert "cpu" not in settle_loop(make_plan("safe"))["accelerator"]


@pytest.mark.parametrize(("processes", "steps"), [("1", 8), ("4", 2)])
def test_the_launchers_processes_decide_the_accumulation(
    processes: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effective batch stays what it is on however many processes the launcher starts."""
    monkeypatch.setenv("WORLD_SIZE", processes)
    plan = make_plan("batch_size(8, effective=64)")
    assert settle(plan)["trainer"]["gradient_accumulation_steps"] == steps
    assert settle_loop(plan)["accelerator"]["gradient_accumulation_steps"] == steps


def test_your_batch_size_keeps_the_effective_batch(tmp_path: Path) -> None:
    """A smaller batch per device of yours takes more accumulation, so that the training stays."""
    args = training_arguments(
        make_plan("batch_size(8, effective=64)"), output_dir=str(tmp_path), per_device_train_batch_size=2
    )
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 32)


def test_your_accumulation_against_the_effective_batch_is_a_conflict() -> None:
    """Two wishes of yours that contradict each other are named, not chosen between."""
    with pytest.raises(Conflict, match="but 2 is set by you"):
        settle(make_plan("batch_size(8, effective=64)"), yours={"gradient_accumulation_steps": 2})


def test_your_value_wins_and_has_your_name() -> None:
    """A field of yours replaces the trick's."""
    plan = settle(make_plan("safe"), yours={"max_grad_norm": 0.3})
    assert (plan["trainer"]["max_grad_norm"], plan.author("trainer", "max_grad_norm")) == (0.3, "you")


@pytest.mark.parametrize(
    ("yours", "sentence"),
    [
        ({"learnig_rate": 1}, "did you mean learning_rate?"),
        ({"evaluation_strategy": "no"}, "use eval_strategy"),
        ({"optim": "adamw_apex_fused"}, "use adamw_torch_fused"),
        ({"group_by_length": True, "no_cuda": True}, "train_sampling_strategy"),
    ],
)
def test_an_unknown_field_is_told_its_right_name(yours: dict[str, object], sentence: str) -> None:
    """A misspelled field gets the nearest one, a renamed one its new name, all in one error."""
    with pytest.raises(ValueError, match=r".") as error:
        training_arguments(make_plan("safe"), **yours)
    assert sentence in str(error.value)
    assert len(yours) == 1 or "use_cpu" in str(error.value)


def test_an_old_name_that_still_works_wins_like_the_new_one(tmp_path: Path) -> None:
    """`gradient_checkpointing` of yours counts, though transformers ignores it beside the plan's new name."""
    args = training_arguments(
        make_plan("activation_checkpointing"), output_dir=str(tmp_path), gradient_checkpointing=False
    )
    assert args.activation_checkpointing is False


def test_an_unknown_keyword_is_told_its_right_name() -> None:
    """A misspelled keyword of Accelerator or DataLoader gets the nearest one."""
    with pytest.raises(ValueError, match="did you mean project_dir"):
        make_accelerator(make_plan("safe"), projet_dir="x")
    with pytest.raises(ValueError, match="did you mean num_workers"):
        dataloader_keywords(make_plan("safe"), num_worker=1)


@pytest.mark.parametrize(
    ("trick", "off", "left"),
    [
        ("compile", {"torch_compile": False}, "torch_compile_backend"),
        ("activation_checkpointing(2)", {"activation_checkpointing": False}, "activation_checkpointing_kwargs"),
        ("fp16", {"fp16": False}, "fp16_full_eval"),
        ("tf32", {"tf32": None}, "torch_compile"),
    ],
)
def test_a_trick_that_you_switch_off_goes_whole(trick: str, off: dict[str, object], left: str, tmp_path: Path) -> None:
    """Its other settings and its needs go with its switch, and that is said."""
    args = training_arguments(make_plan(trick), output_dir=str(tmp_path), **off)
    (key,) = off
    assert not getattr(args, key)
    assert not getattr(args, left)
    assert (
        f"{make_plan(trick).tricks[0].name} is left out: you pass {key}="
        in settle(make_plan(trick), yours=off).notes[0]
    )


def test_what_you_switch_on_needs_what_the_trick_needs(tmp_path: Path) -> None:
    """fp16 of yours on a CPU is stopped like the trick's: the stack would train in fp32 without a word."""
    with pytest.raises(ValueError, match="fp16 needs an accelerator"):
        training_arguments(make_plan("safe"), output_dir=str(tmp_path), fp16=True)
    with pytest.raises(ValueError, match="fp16 needs an accelerator"):
        make_accelerator(make_plan("bf16"), mixed_precision="fp16")


def test_compiling_alone_leaves_tf32_off(tmp_path: Path) -> None:
    """transformers turns tf32 on with torch_compile where nobody mentions it; our silence is written out."""
    assert training_arguments(make_plan("compile"), output_dir=str(tmp_path)).tf32 is False
    assert argument_fields(make_plan("compile"))["tf32"] is False
    assert argument_fields(make_plan("fast"))["tf32"] is True


def test_a_plans_switches_end_with_the_next_plan() -> None:
    """What one plan switches for the process, the next one that is silent about it puts back."""
    import torch

    before = torch.backends.fp32_precision
    switch_process(make_plan("tf32"))
    assert torch.backends.fp32_precision == "tf32"
    switch_process(make_plan("safe"))
    assert torch.backends.fp32_precision == before


def test_the_launchers_precision_is_taken_over_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plan is silent the launcher's precision counts, as the stack has it, and is said."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert settle(make_plan("safe")).author("trainer", "bf16") == "launcher"
    assert settle_loop(make_plan("safe")).author("accelerator", "mixed_precision") == "launcher"
    assert settle(make_plan("bf16")).author("trainer", "bf16") == "bf16"


def test_a_launcher_with_another_precision_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script would win in silence; we stop with both names."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    for settled in (settle, settle_loop):
        with pytest.raises(Conflict, match="The launcher asks for fp16, bf16 for bf16"):
            settled(make_plan("bf16"))


@pytest.mark.parametrize(
    ("machine", "preset"),
    [
        (Machine(), "cpu"),
        (Machine.named("T4"), "turing"),
        (Machine.named("V100-16GB"), "turing"),
        (Machine.named("rtx3090"), "fast"),
        (Machine(accelerator="mps", gpu="Apple M3"), "safe"),
    ],
)
def test_a_machine_has_a_preset(machine: Machine, preset: str) -> None:
    """What a recipe takes without --plan can run where it is taken, as far as hardware goes."""
    assert default_preset(machine)[0] == preset
    hardware = [s for s in make_plan(preset, machine=machine).unmet(machine) if "package" not in s]
    assert not hardware


@pytest.mark.parametrize("build", [training_arguments, make_accelerator])
def test_a_name_is_no_plan(build: Any) -> None:
    """The name of a preset where a plan belongs is one sentence with what to write."""
    with pytest.raises(ValueError, match=r"'safe' is none: write make_plan\('safe'\) instead"):
        build("safe")


def test_half_an_optimizer_is_refused(tmp_path: Path) -> None:
    """GaLore's name without its layers names the trick that says them."""
    with pytest.raises(ValueError, match="name the trick galore in the plan"):
        training_arguments(make_plan("lora"), output_dir=tmp_path, optim="galore_adamw")


@pytest.mark.parametrize(
    ("first", "second"), [("bf16", "safe"), ("compile('eager')", "safe"), ("safe", "bf16"), ("fp8", "safe")]
)
def test_a_second_plan_is_not_trained_as_the_first(first: str, second: str) -> None:
    """accelerate keeps precision and compiler for the whole process: another plan's Accelerator is refused."""
    make_accelerator(make_plan(first))
    with pytest.raises(ValueError, match="start another process for it"):
        make_accelerator(make_plan(second))
    assert make_accelerator(make_plan(first))


def test_what_fails_leaves_no_variables(tmp_path: Path) -> None:
    """Arguments that cannot be built take the plan's environment variables with them."""
    import os

    before = dict(os.environ)
    with pytest.raises(ValueError, match="load_best_model_at_end"):
        training_arguments(make_plan("fp8"), output_dir=tmp_path, load_best_model_at_end=True)
    assert dict(os.environ) == before


def test_arguments_whose_variables_are_taken_back_are_said(tmp_path: Path) -> None:
    """Two plans' arguments before the first one's Trainer: a warning names the variables that it will not find."""
    first = training_arguments(make_plan("compile('eager', regional=True)"), output_dir=tmp_path)
    with pytest.warns(UserWarning, match="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION of the arguments made before"):
        training_arguments(make_plan("safe"), output_dir=tmp_path)
    assert first.torch_compile

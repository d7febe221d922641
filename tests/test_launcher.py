"""What a launcher says against what a plan says: taken over with its name, or a conflict; never in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.emit import here, launcher
from hf_efficient.emit.accelerator import accelerator_keywords
from hf_efficient.emit.deepspeed import loop_settings
from hf_efficient.emit.fields import argument_fields
from hf_efficient.emit.loop import dataloader_keywords, make_accelerator, settle_loop
from hf_efficient.emit.process import switch_process
from hf_efficient.emit.trainer import settle, training_arguments
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict
from hf_efficient.trick import Trick

DOORS = pytest.mark.parametrize("settled", [settle, settle_loop], ids=["trainer", "loop"])


@DOORS
def test_the_launchers_accumulation_is_taken_or_a_conflict(settled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate lets the launcher's steps win over the script's, so another number in the plan stops."""
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    target = "trainer" if settled is settle else "accelerator"
    assert settled(make_plan("safe")).author(target, "gradient_accumulation_steps") == "launcher"
    with pytest.raises(Conflict, match=r"The launcher asks for 2 accumulation steps, gradient_accumulation\(4\) for 4"):
        settled(make_plan("gradient_accumulation(4)"))
    with pytest.raises(Conflict, match="takes 8 accumulation steps on 1 process, but 2 is set by launcher"):
        settled(make_plan("batch_size(8, effective=64)"))
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    with pytest.raises(Conflict, match="The launcher asks for 1 accumulation steps"):
        settled(make_plan("gradient_accumulation(4)"))


@DOORS
def test_a_plan_for_deepspeed_needs_a_launcher(settled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a launcher DeepSpeed would end in a traceback about MPI; the sentence names the command."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="accelerate launch --use_deepspeed"):
        settled(make_plan("zero"))


@DOORS
def test_the_launchers_sharding_must_be_the_plans(settled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO keys of the launch YAML that say the same are no obstacle; another stage or offload is a conflict."""
    monkeypatch.setattr(launcher, "launched", lambda: True)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "zero_stage")
    with pytest.raises(Conflict, match=r"The launch YAML says zero_stage: 2, zero\(3\) says 3"):
        settled(make_plan("zero(3)"))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none")
    with pytest.raises(Conflict, match="offload_optimizer_device: none"):
        settled(make_plan("zero(2, 'optimizer')"))
    settled(make_plan("zero(2)"))
    assert os.environ["ACCELERATE_CONFIG_DS_FIELDS"] == ""


@DOORS
def test_fp16_of_a_launcher_on_a_cpu_is_stopped(settled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stack would train in fp32 without a word, whoever asked for fp16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match="fp16 needs an accelerator"):
        training_arguments(make_plan("safe"), output_dir=str(tmp_path)) if settled is settle else make_accelerator(
            make_plan("safe")
        )


def test_precision_that_you_switch_off_is_a_conflict_with_a_launcher_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`bf16=False` under a launcher with bf16 would train in bf16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(Conflict, match="The launcher asks for bf16, you for no"):
        settle(make_plan("safe"), yours={"bf16": False})


def test_sft_takes_the_launchers_precision_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is written out for SFTConfig does not hide what the launcher does."""
    from trl import SFTConfig

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert training_arguments(make_plan("safe"), SFTConfig, output_dir=str(tmp_path)).bf16 is True


def test_an_optimizer_that_offload_would_replace_is_a_conflict() -> None:
    """accelerate exchanges any optimizer for DeepSpeed's CPU AdamW under offload; only AdamW may be."""
    for build in (argument_fields, accelerator_keywords):
        with pytest.raises(Conflict, match="would take the place of adamw_bnb_8bit"):
            build(make_plan("zero3_offload", "adamw_8bit"))
        assert build(make_plan("zero3_offload"))
        assert build(make_plan("zero3", "adamw_8bit"))


def test_cpu_true_beside_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerator(cpu=True) would drop the engine in silence."""
    monkeypatch.setattr(launcher, "launched", lambda: True)
    with pytest.raises(ValueError, match="drops DeepSpeed"):
        make_accelerator(make_plan("zero"), cpu=True)


def test_processes_that_do_not_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that accelerate sees as one each would train alone, with half of the effective batch."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="started 2 processes and Accelerate found 1"):
        make_accelerator(make_plan("safe"))


def test_one_process_on_several_gpus_is_refused_with_an_effective_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DataParallel multiplies the batch by the GPUs; the sentence says how to start instead."""
    from transformers import TrainingArguments

    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(ValueError, match="One process drives 2 GPUs"):
        training_arguments(make_plan("batch_size(8, effective=64)"), output_dir=str(tmp_path))
    training_arguments(make_plan("batch_size(8)"), output_dir=str(tmp_path))


def test_the_engine_of_a_loop_is_told_clipping_and_accumulation() -> None:
    """Silence means no clipping and one step, not accelerate's 1.0; with a launcher's engine as with the plan's."""
    assert loop_settings(make_plan("zero")) == {"gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
    plan = make_plan("gradient_clipping(0.25)", "gradient_accumulation(3)")
    call = accelerator_keywords(plan, "DEEPSPEED")["deepspeed_plugin"]
    assert call.keywords == {"gradient_accumulation_steps": 3, "gradient_clipping": 0.25}
    assert "deepspeed_plugin" not in accelerator_keywords(plan)


def test_a_loader_of_another_batch_size_cannot_keep_the_effective_batch() -> None:
    """The accumulation was computed for the plan's batch; another one is written into the plan."""
    with pytest.raises(Conflict, match=r"write batch_size\(2, effective=64\)"):
        dataloader_keywords(make_plan("batch_size(8, effective=64)"), batch_size=2)
    assert dataloader_keywords(make_plan("batch_size(8)"), batch_size=2)["batch_size"] == 2


def test_unpinning_or_not_persisting_keeps_the_workers(tmp_path: Path) -> None:
    """Only a trick's own switch turns it off; a detail of yours is a detail."""
    for key in ("dataloader_pin_memory", "dataloader_persistent_workers"):
        args = training_arguments(make_plan("safe"), output_dir=str(tmp_path), **{key: False})
        assert (args.dataloader_num_workers, getattr(args, key)) == (2, False)


def test_a_replaced_trick_needs_nothing_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An optimizer of yours in place of the plan's frees the run of the package that the plan's needs."""
    plan = make_plan("adamw_8bit")
    monkeypatch.setattr("hf_efficient.emit.trainer.training_machine", lambda: here.without_accelerator(_bare()))
    with pytest.raises(ValueError, match="bitsandbytes"):
        training_arguments(plan, output_dir=str(tmp_path))
    assert training_arguments(plan, output_dir=str(tmp_path), optim="adamw_torch").optim == "adamw_torch"


def test_environment_variables_end_with_the_next_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trick's variables are set through both doors, and put back by the next plan that is silent about them."""
    monkeypatch.setenv("HFE_OLD", "before")
    variables = {"HFE_OLD": "during", "HFE_NEW": 1}
    trick = Trick(name="t", family="f", saves="s", costs="c", numerics="exact", env=variables)
    training_arguments(make_plan(trick), output_dir=str(tmp_path))
    assert (os.environ["HFE_OLD"], os.environ["HFE_NEW"]) == ("during", "1")
    switch_process(make_plan("safe"))
    assert os.environ["HFE_OLD"] == "before"
    assert "HFE_NEW" not in os.environ


def _bare() -> Any:
    from hf_efficient.machine import Machine

    return Machine()

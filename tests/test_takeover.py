"""The engine that `accelerate launch` chose becomes the plan's, key by key, or is refused; nothing of it is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import ROOT, finish, launch

from hf_efficient.emit.accelerator import accelerator_keywords
from hf_efficient.emit.launcher import launchers_engine
from hf_efficient.emit.loop import dataloader_keywords, settle_loop
from hf_efficient.emit.takeover import take_launchers_engine
from hf_efficient.emit.trainer import settle
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict, Plan
from hf_efficient.train.summary import plan_text

pytest.importorskip("deepspeed")

DOORS = pytest.mark.parametrize("settled", [settle, settle_loop], ids=["trainer", "loop"])
Launcher = Callable[..., None]
STAGES = [(1, "none", "none"), (2, "none", "none"), (2, "cpu", "none"), (3, "none", "none"), (3, "cpu", "none"),
          (3, "cpu", "cpu")]  # fmt: skip
FILE = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto"}  # fmt: skip


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Gives this process the variables that the real `accelerate launch FLAGS` would start a script with."""
    from accelerate.commands import launch
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    made: dict[str, str] = {}
    starts = {
        "deepspeed_launcher": lambda args: made.update(prepare_deepspeed_cmd_env(args)[1]),
        "multi_gpu_launcher": lambda args: made.update(prepare_multi_gpu_env(args)),
        "simple_launcher": lambda args: made.update(prepare_simple_launcher_cmd_env(args)[1]),
    }
    for name, start in starts.items():
        monkeypatch.setattr(launch, name, start)

    def start(*flags: str, processes: int = 1, **config: Any) -> None:
        if config:
            place = Path(os.environ["PYTEST_LAUNCH"])
            place.write_text(
                yaml.safe_dump({"compute_environment": "LOCAL_MACHINE", "num_processes": processes, **config})
            )
            flags = ("--config_file", str(place), *flags)
        launch.launch_command(launch.launch_command_parser().parse_args([*flags, "script.py"]))
        for key, value in (made | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes)}).items():
            monkeypatch.setenv(key, value)

    return start


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_LAUNCH", str(tmp_path / "launch.yaml"))
    monkeypatch.chdir(tmp_path)


def zero_yaml(stage: int = 2, **more: Any) -> dict[str, Any]:
    """Return the keys of a launch YAML for DeepSpeed."""
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage, **more}}


def file_yaml(**config: Any) -> dict[str, Any]:
    """Write a DeepSpeed file into the working folder; return the keys of a launch YAML that names it."""
    Path("ds.json").write_text(json.dumps(FILE | config))
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}


@DOORS
@pytest.mark.parametrize(("stage", "optimizer", "weights"), STAGES)
def test_a_silent_plan_gets_the_launchers_stage(
    settled: Any, stage: int, optimizer: str, weights: str, launched: Launcher
) -> None:
    """Every stage and offload of a launch YAML becomes what the trick zero says, with the launcher for an author."""
    launched(**zero_yaml(stage, offload_optimizer_device=optimizer, offload_param_device=weights))
    plan = settled(make_plan("safe"))
    offload = "all" if weights == "cpu" else "optimizer" if optimizer == "cpu" else None
    assert plan["deepspeed"] == make_plan(f"zero({stage}, offload={offload!r})")["deepspeed"]
    assert {one.by for one in plan.settings_of("deepspeed")} == {plan.author("launch", "zero_stage") or "launcher"}
    assert plan.engine == "DEEPSPEED"
    assert os.environ["ACCELERATE_CONFIG_DS_FIELDS"] == ""  # accelerate would refuse our configuration beside it


@DOORS
def test_a_launcher_that_says_nothing_of_stages_has_accelerates(settled: Any, launched: Launcher) -> None:
    """`accelerate launch --use_deepspeed` is ZeRO-2, and a script finds it so after TrainingArguments, too."""
    launched("--use_deepspeed", "--num_processes", "1")
    assert settled(make_plan("safe"))["deepspeed"] == make_plan("zero(2)")["deepspeed"]
    del os.environ["ACCELERATE_USE_DEEPSPEED"]  # as TrainingArguments(deepspeed=...) does
    assert launchers_engine() == "DEEPSPEED"
    assert settled(make_plan("safe"))["deepspeed"] == make_plan("zero(2)")["deepspeed"]


def test_offloaded_weights_alone_stay_alone(launched: Launcher) -> None:
    """No trick keeps weights in host memory and the optimizer on the GPU; the launcher's words are kept."""
    launched(**zero_yaml(3, offload_param_device="cpu"))
    plan = settle(make_plan("safe"))
    zero = make_plan("zero(3, offload='all')")["deepspeed"]["zero_optimization"]
    del zero["offload_optimizer"]
    assert plan["deepspeed"]["zero_optimization"] == zero


@DOORS
@pytest.mark.parametrize(
    ("trick", "config", "sentence"),
    [
        ("zero(3)", zero_yaml(2), r"zero_stage: 2, zero\(3\) says 3"),
        ("zero(2)", zero_yaml(2, offload_optimizer_device="cpu"), "offload_optimizer_device: cpu, zero says none"),
        ("fsdp", zero_yaml(2), "The launcher chose DEEPSPEED, fsdp takes FSDP"),
        ("zero", {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}, "The launcher chose FSDP, zero"),
        (
            "fsdp(offload=True)",
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}},
            r"fsdp_offload_params: false, fsdp\(offload=True\) says true",
        ),
    ],
)
def test_another_engine_than_the_plans_is_a_conflict(
    settled: Any, trick: str, config: dict[str, Any], sentence: str, launched: Launcher
) -> None:
    """Both authors and both values stand in one sentence, with what to do."""
    launched(num_processes=1, **config)
    with pytest.raises(Conflict, match=f"{sentence}.*keep one of the two"):
        settled(make_plan(trick))


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        (zero_yaml(0), "ZeRO stage 0"),
        ({"distributed_type": "FSDP", "num_processes": 1, "fsdp_config": {"fsdp_version": 1}}, "FSDP1"),
    ],
)
def test_an_engine_without_a_trick_is_left_to_accelerate_aloud(
    config: dict[str, Any], engine: str, launched: Launcher
) -> None:
    """ZeRO stage 0 and FSDP1 come from the launcher's words; the run's summary says that nothing here knows of them."""
    launched(**config)
    plan = settle_loop(make_plan("safe"))
    assert plan.engine == "NO"
    assert f"The launcher chose {engine}, for which there is no trick" in plan_text(plan, ("accelerator",))
    assert plan["deepspeed"] == {}


def test_stage_0_of_the_launcher_clips_as_the_plan_does(launched: Launcher) -> None:
    """The engine that accelerate makes is told the loop's clipping and accumulation, "no clipping" included."""
    launched(**zero_yaml(0))
    call = accelerator_keywords(settle_loop(make_plan("gradient_accumulation(3)")), launchers_engine())
    assert call["deepspeed_plugin"].keywords == {"gradient_accumulation_steps": 3, "gradient_clipping": 0.0}


@DOORS
def test_the_words_of_fsdp2_become_the_plans(settled: Any, launched: Launcher, monkeypatch: Any) -> None:
    """Resharding, offload, wrapping, state dict and loading of a launch YAML stand in what is built."""
    monkeypatch.setattr("hf_efficient.emit.trainer.require", lambda *_, **__: None)  # FSDP needs an accelerator
    words = {
        "reshard_after_forward": False,
        "offload_params": True,
        "auto_wrap_policy": "SIZE_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": False,
    }
    config = {f"fsdp_{key}": value for key, value in words.items()} | {"fsdp_version": 2}
    launched(distributed_type="FSDP", num_processes=2, fsdp_config=config)
    target, place = ("trainer", "fsdp_config") if settled is settle else ("accelerator", "fsdp_plugin")
    plan = settled(make_plan("safe"))
    built = plan[target][place]
    assert {key: built.get(key) for key in words if key != "offload_params"} == {
        key: value for key, value in words.items() if key != "offload_params"
    }
    assert built["cpu_offload"] is True
    assert plan.author(target, f"{place}.state_dict_type") == "launcher"
    named = settled(make_plan("fsdp(False, True)"))
    assert named[target][place]["state_dict_type"] == "SHARDED_STATE_DICT"
    assert named.author(target, f"{place}.reshard_after_forward") == "fsdp(False, True)"


def test_the_checkpointing_of_fsdp2_becomes_the_plans(launched: Launcher) -> None:
    """FSDP's own checkpointing and its offload of a launch YAML are kept; the plan's own stands over them."""
    config = {"fsdp_version": 2, "fsdp_activation_checkpointing": True, "fsdp_activation_checkpointing_offload": True}
    launched(distributed_type="FSDP", num_processes=2, fsdp_config=config)
    plugin = settle_loop(make_plan("safe"))["accelerator"]["fsdp_plugin"]
    assert (plugin["activation_checkpointing"], plugin["activation_checkpointing_offload"]) == (True, True)
    plugin = settle_loop(make_plan("activation_checkpointing"))["accelerator"]["fsdp_plugin"]
    assert (plugin["activation_checkpointing"], plugin["activation_checkpointing_offload"]) == (True, False)


@DOORS
def test_a_word_that_fsdp2_does_not_take_is_one_sentence(settled: Any, launched: Launcher) -> None:
    """`fsdp_reshard_after_forward: FULL_SHARD` is FSDP1's; it would have meant "do not reshard"."""
    config = {"fsdp_version": 2, "fsdp_reshard_after_forward": "FULL_SHARD"}
    launched(distributed_type="FSDP", num_processes=2, fsdp_config=config)
    with pytest.raises(ValueError, match="fsdp_reshard_after_forward: full_shard, and FSDP2 takes true or false"):
        settled(make_plan("safe"))


@DOORS
def test_a_deepspeed_file_of_the_launcher_is_taken_word_for_word(settled: Any, launched: Launcher) -> None:
    """Keys that no trick has, empty mappings and nulls among them, reach the engine; nothing of ours is added."""
    more = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": None, "mics": {}},
        "wall_clock_breakdown": True,
        "activation_checkpointing": {},
        "communication_data_type": "fp32",
    }
    launched(**file_yaml(**more))
    plan = settled(make_plan("safe"))
    assert plan["deepspeed"] == FILE | more
    assert plan.author("deepspeed", "wall_clock_breakdown") == "launcher"
    assert plan["launch"]["deepspeed_config"]["zero_stage"] == 3
    assert "ZeRO stage 3" in plan_text(plan, ("accelerator",))


@DOORS
def test_a_plan_with_zero_takes_a_file_that_shards_alike(settled: Any, launched: Launcher) -> None:
    """Equal stage and offload: the file's keys stand, and that is said; another stage or offload is a conflict."""
    launched(**file_yaml(wall_clock_breakdown=True))
    plan = settled(make_plan("zero2"))
    assert plan["deepspeed"] == FILE | {"wall_clock_breakdown": True}
    assert "The launcher's DeepSpeed file ds.json is the configuration, with all its keys." in plan.notes
    with pytest.raises(Conflict, match=r"file ds.json says stage: 2, zero\(3\) says 3"):
        settled(make_plan("zero3"))
    with pytest.raises(Conflict, match=r"says offload_optimizer: none, zero\(offload='optimizer'\) says cpu"):
        settled(make_plan("zero2_offload"))


@DOORS
@pytest.mark.parametrize(
    ("key", "value", "agrees", "differs"),
    [
        ("gradient_clipping", 0.5, "gradient_clipping(0.5)", "gradient_clipping(0.25)"),
        ("gradient_accumulation_steps", 4, "gradient_accumulation(4)", "gradient_accumulation(2)"),
        ("train_micro_batch_size_per_gpu", 4, "batch_size(4)", "batch_size(2)"),
    ],
)
def test_a_number_in_the_launchers_file_is_taken_or_a_conflict(
    settled: Any, key: str, value: float, agrees: str, differs: str, launched: Launcher
) -> None:
    """transformers stops late over such a pair, and a loop would train with the file's number."""
    launched(**file_yaml(**{key: value}))
    target, name = {
        "gradient_clipping": ("trainer" if settled is settle else "loop", "max_grad_norm"),
        "gradient_accumulation_steps": ("trainer" if settled is settle else "accelerator", key),
        "train_micro_batch_size_per_gpu": ("trainer", "per_device_train_batch_size")
        if settled is settle
        else ("dataloader", "batch_size"),
    }[key]
    plan = settled(make_plan("adamw_fused"))
    assert (plan[target][name], plan.author(target, name)) == (value, "launcher")
    assert settled(make_plan(agrees))[target][name] == value
    author = re.escape(differs)
    with pytest.raises(
        Conflict, match=rf"file ds.json says {key}: {value}, and .* \(set by {author}\): .*, or write auto"
    ):
        settled(make_plan(differs))


def test_the_loader_has_the_batch_of_the_launchers_file(launched: Launcher) -> None:
    """The engine counts its batches by the file's number, so the loader must have that many rows."""
    launched(**file_yaml(train_micro_batch_size_per_gpu=4))
    assert dataloader_keywords(make_plan("safe"))["batch_size"] == 4
    with pytest.raises(Conflict, match="train_micro_batch_size_per_gpu: 4"):
        dataloader_keywords(make_plan("safe"), batch_size=2)


def test_your_own_value_against_the_launchers_is_a_conflict(launched: Launcher) -> None:
    """What you pass is held against file and YAML alike, before the arguments are built."""
    launched(**file_yaml(gradient_clipping=1.0, gradient_accumulation_steps=2))
    with pytest.raises(Conflict, match=r"gradient_clipping: 1.0, and max_grad_norm is 0.3 \(set by you\)"):
        settle(make_plan("safe"), yours={"max_grad_norm": 0.3})
    with pytest.raises(
        Conflict, match=r"gradient_accumulation_steps: 2, and gradient_accumulation_steps is 3 \(set by you\)"
    ):
        settle_loop(make_plan("safe"), {"gradient_accumulation_steps": 3})
    launched(**zero_yaml(2, gradient_clipping=1.0))
    with pytest.raises(Conflict, match=r"YAML says gradient_clipping: 1.0, and max_grad_norm is 0.3 \(set by you\)"):
        settle(make_plan("safe"), yours={"max_grad_norm": 0.3})


@DOORS
def test_the_clipping_of_a_launch_yaml_is_taken_or_a_conflict(settled: Any, launched: Launcher) -> None:
    """accelerate hands it to an engine that is then ours: it would be lost, in the loop and under Trainer."""
    launched(**zero_yaml(2, gradient_clipping=0.5))
    plan = settled(make_plan("adamw_fused"))
    assert plan["loop"]["max_grad_norm"] == plan["trainer"]["max_grad_norm"] == 0.5
    assert plan.author("loop", "max_grad_norm") == "launcher"
    for trick in ("gradient_clipping(1.0)", "zero2"):
        with pytest.raises(
            Conflict, match=r"The launcher's YAML says gradient_clipping: 0.5, and max_grad_norm is 1.0"
        ):
            settled(make_plan(trick))
    launched(**zero_yaml(2, gradient_clipping="auto"))
    assert settled(make_plan("gradient_clipping(0.25)"))["loop"]["max_grad_norm"] == 0.25


@DOORS
def test_the_precision_of_the_launchers_file_is_taken_or_a_conflict(settled: Any, launched: Launcher) -> None:
    """A literal in the file decides in the engine: a loop without bf16 would train in bf16 without a word."""
    launched(**file_yaml(bf16={"enabled": True}))
    plan = settled(make_plan("safe"))
    assert plan["trainer"].get("bf16") if settled is settle else plan["accelerator"]["mixed_precision"] == "bf16"
    launched(**file_yaml(bf16={"enabled": False}))
    with pytest.raises(Conflict, match=r"says bf16.enabled: false, bf16 asks for bf16"):
        settled(make_plan("bf16"))
    settled(make_plan("safe"))


@DOORS
def test_an_optimizer_block_does_not_replace_the_plans_in_silence(settled: Any, launched: Launcher) -> None:
    """Trainer would take the block's optimizer whatever `optim` says; where the plan has none, that is noted."""
    launched(**file_yaml(optimizer={"type": "Adam"}, scheduler={"type": "WarmupLR"}))
    with pytest.raises(Conflict, match=r"optimizer block \(Adam\), which would take the place of adamw_8bit"):
        settled(make_plan("adamw_8bit"))
    notes = settled(make_plan("gradient_clipping")).notes
    assert [note for note in notes if "decides the optimizer: Adam." in note]
    assert [note for note in notes if "decides the scheduler: WarmupLR." in note]


@DOORS
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, r"cannot be read \(no such file or directory\): it is looked for from the working folder"),
        ("{'zero_optimization'", r"is no JSON \(Expecting"),
        ("[]", "says nothing of ZeRO"),
        ('{"bf16": {}}', "says nothing of ZeRO"),
        ('{"zero_optimization": {"stage": "three"}}', "says nothing of ZeRO"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    settled: Any, text: str | None, reason: str, launched: Launcher
) -> None:
    """The sentence names the file, what is wrong with it, and where it is looked for."""
    launched(**file_yaml())
    Path("ds.json").unlink() if text is None else Path("ds.json").write_text(text)
    with pytest.raises(ValueError, match=f"The launcher's DeepSpeed file ds.json {reason}"):
        settled(make_plan("safe"))


@DOORS
def test_offload_to_a_disk_in_a_launch_yaml_is_one_sentence(settled: Any, launched: Launcher) -> None:
    """accelerate 1.15 hands the folder on to nobody, and DeepSpeed would stop later about a path of None."""
    launched(**zero_yaml(3, offload_param_device="nvme", offload_param_nvme_path="/local_nvme"))
    assert "/local_nvme" not in os.environ.values()
    with pytest.raises(ValueError, match="The launch YAML offloads to nvme, and accelerate hands its path on to"):
        settled(make_plan("safe"))


@pytest.mark.parametrize("variables", [{}, {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}])
def test_without_accelerates_launcher_the_plan_has_the_say(variables: dict[str, str], monkeypatch: Any) -> None:
    """torchrun and `deepspeed script.py` choose no engine: a plan's zero is made, a silent plan stays silent."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert take_launchers_engine(make_plan("safe")) == make_plan("safe")
    if variables:
        assert settle_loop(make_plan("zero(3)")).engine == "DEEPSPEED"
    else:
        with pytest.raises(ValueError, match="DeepSpeed needs a launcher"):
            settle_loop(make_plan("zero(3)"))


TRL = {
    "single_gpu": ("NO", {}),
    "multi_gpu": ("NO", {}),
    "zero1": ("DEEPSPEED", {"stage": 1}),
    "zero2": ("DEEPSPEED", {"stage": 2}),
    "zero3": ("DEEPSPEED", {"stage": 3}),
    "fsdp1": ("NO", {}),
    "fsdp2": ("FSDP", {}),
}
"""TRL's launch files -> the engine that a silent plan gets from them."""


@pytest.mark.parametrize("name", TRL)
def test_trls_launch_files_are_taken_over(name: str, launched: Launcher) -> None:
    """Their engine and their bf16 become the plan's; the accumulation that zero1 names is the launcher's too."""
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "accelerate_configs"
    assert {path.stem for path in folder.glob("*.yaml")} == set(TRL)
    launched("--config_file", str(folder / f"{name}.yaml"), processes=8)
    plan: Plan = settle_loop(make_plan("safe"))
    engine, zero = TRL[name]
    assert plan.engine == engine
    assert plan["deepspeed"].get("zero_optimization", {}).items() >= zero.items()
    assert (plan["accelerator"]["mixed_precision"], plan.author("accelerator", "mixed_precision")) == (
        "bf16",
        "launcher",
    )
    assert bool([note for note in plan.notes if "no trick" in note]) == (name == "fsdp1")
    if name == "zero1":
        assert plan.author("accelerator", "gradient_accumulation_steps") == "launcher"
        with pytest.raises(Conflict, match=r"takes 4 accumulation steps on 8 processes, but 1 is set by launcher"):
            settle_loop(make_plan("batch_size(2, effective=64)"))


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """A tiny model and forty texts for a recipe, three updates, and a plan that is silent about engines."""
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(40)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(tiny), "--data", str(tmp_path / "notes.jsonl"), "--output_dir", str(tmp_path / "out"),
        "--max_steps", "3", "--seq-len", "32", "--plan", "safe",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("name", "recipe", "engine"),
    [("zero1", "accelerate_loop", "DeepSpeedEngine"), ("fsdp2", "causal_lm", "FSDP2 DTensor")],
)
def test_trls_launch_files_start_recipes(name: str, recipe: str, engine: str, flags: list[str], tmp_path: Path) -> None:
    """A recipe unchanged, TRL's file unchanged but for two processes: its engine and its bf16, by the launcher."""
    trl = pytest.importorskip("trl")
    file = Path(trl.__file__).parent / "accelerate_configs" / f"{name}.yaml"
    run = launch(f"recipes/{recipe}.py", flags, yaml=file, folder=tmp_path / "seen")
    assert run.returncode == 0, run.output[-3000:]
    facts = run.ranks[1]
    assert (facts["engine"], facts["processes"], len(facts["losses"])) == (engine, 2, 3)
    assert facts["optimizer"] == pytest.approx(0.5, abs=0.01)
    assert re.search(r"launcher +.*(mixed_precision=bf16|bf16=True)", run.output), run.output[-3000:]


@pytest.mark.slow
@pytest.mark.launch
def test_torchrun_makes_the_engine_of_the_plan(flags: list[str], tmp_path: Path) -> None:
    """torchrun says nothing of engines: the plan's zero(3) is what trains, in a loop of one's own."""
    script = tmp_path / "start.py"
    script.write_text(
        "import os, sys, engines, launch\nengines.start_deepspeed()\nos._exit(launch.main(sys.argv[1], sys.argv[2:]))\n"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["torchrun", "--standalone", "--nproc_per_node", "2", str(script)]
    run = subprocess.Popen(
        [*command, str(ROOT / "recipes" / "accelerate_loop.py"), *flags, "zero(3)"],
        env=os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "SEEN_IN": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    done = finish(run, folder=tmp_path)
    assert done.returncode == 0, done.output[-3000:]
    facts = done.ranks[1]
    assert (facts["engine"], facts["stage"], facts["processes"]) == ("DeepSpeedEngine", 3, 2)
    assert facts["weights"] == pytest.approx(0.5, abs=0.01)

"""The launch files: accelerate takes every one, says nothing about it, and recipes run under it unchanged."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import launch

from hf_efficient.cli import main
from hf_efficient.emit.launch import launch_yaml
from hf_efficient.emit.launch_files import launch_files
from hf_efficient.emit.takeover import take_launchers_engine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict
from hf_efficient.presets import PRESETS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "recipes" / "launch"
FILES = sorted(FOLDER.glob("*.yaml"))
SHARDED = [path for path in FILES if path.stem in PRESETS and path.stem != "cpu"]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
EVERY_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def _told(*words: str) -> Any:
    """Return what `accelerate launch WORDS train.py` makes of files and flags."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    args, _, _ = _validate_launch_command(launch_command_parser().parse_args([*words, "train.py"]))
    return args


def test_there_is_a_file_for_each_way_to_launch() -> None:
    """One card, DDP, a CPU, two machines, and every preset that shards; nothing that no plan makes."""
    names = {path.stem for path in FILES}
    assert names == set(launch_files())
    assert names == {"cpu", "single_gpu", "ddp", "fsdp2", "two_nodes", "two_nodes_zero3", "two_nodes_fsdp2"} | {
        name for name in PRESETS if name.startswith("zero")
    }


@EVERY_FILE
def test_accelerate_takes_a_file_without_a_word(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No key is unknown, no value was "not passed"; precision, accumulation and clipping stay the script's."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with caplog.at_level(logging.WARNING):
        args = _told("--config_file", str(path))
    assert not caplog.records
    assert (args.mixed_precision, args.gradient_accumulation_steps, args.gradient_clipping) == ("no", None, None)
    assert args.num_processes % args.num_machines == 0
    assert _told("--config_file", str(path), "--num_processes", "6").num_processes == 6


def test_a_cpu_gets_all_its_cores(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """accelerate says so in a line, as the file announces; with the number on the command line it is silent."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 12)
    chosen = ["--config_file", str(FOLDER / "cpu.yaml")]
    assert _told(*chosen, "--num_cpu_threads_per_process", "3").num_cpu_threads_per_process == 3
    assert not caplog.records
    assert _told(*chosen).num_cpu_threads_per_process == 12
    assert "`--num_cpu_threads_per_process` was set to `12`" in caplog.text


@EVERY_FILE
def test_a_file_says_what_it_is_for_and_its_command(path: Path) -> None:
    """Above the keys stand what it is for, commands that name the file, and what to change."""
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comments[0].endswith(".")
    assert sum(f"accelerate launch --config_file {path.name}" in line for line in comments) == (
        2 if "two_nodes" in path.stem else 1
    )
    assert any("num_processes" in line for line in comments)
    assert max(map(len, comments)) <= 120


@pytest.mark.parametrize("path", SHARDED, ids=lambda path: path.stem)
def test_a_plan_takes_over_what_a_file_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that the launcher sets for a file become the sharding of the preset of its name, by launcher."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    args = _told("--config_file", str(path), "--main_process_port", "0")
    args.deepspeed_fields_from_accelerate_config = ""
    env = prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    for key in env.keys() - os.environ.keys():
        monkeypatch.setenv(key, env[key])
    taken, preset = take_launchers_engine(make_plan("safe")), make_plan(path.stem)
    for target in ("deepspeed", "launch"):
        assert taken[target] == preset[target]
    (key,) = {"deepspeed_config", "fsdp_config"} & taken["launch"].keys()
    assert taken.author("launch", key) == "launcher"


def test_several_machines_start_their_own_processes() -> None:
    """DeepSpeed is started on each machine by accelerate, not from the first one by pdsh; rank and address are open."""
    for path in FOLDER.glob("two_nodes*.yaml"):
        keys = yaml.safe_load(path.read_text())
        assert keys["num_machines"] == 2
        assert not {"machine_rank", "main_process_ip"} & keys.keys()
        if keys["distributed_type"] == "DEEPSPEED":
            assert keys["deepspeed_config"]["deepspeed_multinode_launcher"] == "standard"


def test_a_disk_is_nothing_for_a_launch_file() -> None:
    """accelerate's YAML has no key for the folder, so the sentence names what has: the plan or the JSON."""
    plan = make_plan("zero(3, offload='all', nvme_path='/local_nvme')")
    with pytest.raises(Conflict, match=r"hands no folder of it on .* `accelerate launch --use_deepspeed`"):
        launch_yaml(plan)


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """A tiny model, thirty texts, and two updates."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(30)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "2",
        "--learning_rate", "0.01", "--seq-len", "32",
    ]  # fmt: skip


BY_LAUNCHER = {
    "ddp": ("DistributedDataParallel", r"launcher +\S*pin_memory=False"),  # of engines there is nothing to say
    "zero3": ("DeepSpeedEngine", r"launcher +ZeRO stage 3"),
    "fsdp2": ("FSDP2 DTensor", r"launcher +(fsdp=True|fsdp_plugin\.fsdp_version=2)"),
}
"""File -> who trains, and what the summary says of the launcher."""


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize("name", BY_LAUNCHER)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_unchanged_under_a_file(recipe: str, name: str, flags: list[str], tmp_path: Path) -> None:
    """Two processes train with the file's engine, the summary names the launcher as its author, a model is saved."""
    run = launch(f"recipes/{recipe}.py", flags, yaml=FOLDER / f"{name}.yaml", folder=tmp_path / "seen")
    assert run.returncode == 0, run.output[-3000:]
    engine, said = BY_LAUNCHER[name]
    assert [(rank["processes"], rank["engine"]) for rank in run.ranks] == [(2, engine)] * 2
    assert re.search(said, run.output), run.output[-3000:]
    assert "were not passed" not in run.output
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.launch
@pytest.mark.slow
def test_copies_work_in_another_folder(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch file and a recipe, copied and started from where they are."""
    monkeypatch.chdir(tmp_path)
    assert main(["config", "copy", "launch/zero2", "mine"]) == 0
    assert main(["recipe", "copy", "causal_lm", "mine"]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    script = tmp_path / "mine" / "causal_lm.py"
    run = launch(script, flags, yaml=Path("zero2.yaml"), folder=tmp_path / "seen")
    assert run.returncode == 0, run.output[-3000:]
    assert [(rank["processes"], rank["stage"]) for rank in run.ranks] == [(2, 2)] * 2

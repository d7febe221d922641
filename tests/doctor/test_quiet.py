"""What is right is left in peace: our own files, TRL's launch files, scripts that others ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_efficient.checks.run import run_checks
from hf_efficient.doctor import examine_files
from hf_efficient.emit.targets import Options, emit
from hf_efficient.machine import this_machine
from hf_efficient.merge import make_plan
from hf_efficient.presets import PRESETS
from hf_efficient.reading.installed import folder

ROOT = Path(__file__).parents[2]
TRL = folder("trl")
LAUNCH_FILES = sorted((TRL / "accelerate_configs").glob("*.yaml")) if TRL else []


def _serious(paths: list[Path], gpu: str | None = None) -> list[str]:
    report = examine_files(paths, gpu=gpu)
    return [f"{f.where} {f.code}: {f.what}" for f in report.findings if f.level != "info"]


def test_trl_has_seven_launch_files() -> None:
    """So that a test over none of them cannot pass."""
    assert len(LAUNCH_FILES) == 7


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.stem)
def test_trls_launch_files_are_fine(path: Path) -> None:
    """No error and no warning."""
    assert not _serious([path])


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_our_recipes_are_fine(path: Path) -> None:
    """No error and no warning, on a new card and on an old one."""
    assert not _serious([path], "A100-80GB")
    assert not _serious([path], "T4")


@pytest.mark.parametrize("path", sorted((ROOT / "deepspeed_configs").glob("*.json")), ids=lambda path: path.stem)
def test_our_deepspeed_files_are_fine(path: Path) -> None:
    """No error and no warning."""
    assert not _serious([path])


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "launch").iterdir()), ids=lambda path: path.name)
def test_our_launch_files_are_fine(path: Path) -> None:
    """No error and no warning, alone and beside each recipe; cpu.yaml where there is no GPU to leave idle."""
    if path.stem == "cpu" and this_machine().accelerator:
        pytest.skip("this machine has a GPU")
    assert not _serious([path])
    for recipe in sorted((ROOT / "recipes").glob("*.py")):
        assert not _serious([path, recipe])


def test_address_and_rank_are_left_to_the_command_line_by_both_or_neither(tmp_path: Path) -> None:
    """A file for two machines that has a rank and no address is warned of; ours, which has neither, is not."""
    text = (ROOT / "recipes" / "launch" / "two_nodes.yaml").read_text()
    (tmp_path / "ours.yaml").write_text(text)
    (tmp_path / "rank.yaml").write_text(text + "machine_rank: 0\n")
    assert not _serious([tmp_path / "ours.yaml"])
    assert "without main_process_ip" in _serious([tmp_path / "rank.yaml"])[0]


@pytest.mark.parametrize("name", PRESETS)
def test_what_our_presets_emit_is_fine(name: str, tmp_path: Path) -> None:
    """Each file that a preset fills, alone and all of them together; on a card that the preset is made for."""
    plan = make_plan(name)
    made: list[Path] = []
    for target, file in (("training-args", "args.json"), ("accelerate", "launch.yaml"), ("deepspeed", "ds.json")):
        try:
            text = emit(plan, target, Options(file=file))
        except ValueError:
            continue  # a target that this preset cannot fill
        (tmp_path / file).write_text(text)
        made.append(tmp_path / file)
    gpu = "T4" if "fp16" in json.dumps([trick.name for trick in plan.tricks]) else "A100-80GB"
    if plan["trainer"].get("use_cpu"):
        if this_machine().accelerator:
            pytest.skip("this preset is for machines without a GPU")
        gpu = None
    assert made
    for path in made:
        assert not _serious([path], gpu)
    # Arguments that carry DeepSpeed's configuration beside a launch file that does so too are rightly refused.
    together = [path for path in made if plan.engine != "DEEPSPEED" or path.name != "args.json"]
    assert not _serious(together, gpu)


@pytest.mark.parametrize("door", ["trainer", "sft", "accelerate"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_python_that_our_presets_emit_is_fine(name: str, door: str, tmp_path: Path) -> None:
    """The script of each door."""
    try:
        text = emit(make_plan(name), "python", Options(door=door))
    except ValueError:
        return  # a door that this preset does not have
    (tmp_path / "train.py").write_text(text)
    assert not _serious([tmp_path / "train.py"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_plan_as_a_setup_document_is_fine(name: str) -> None:
    """The settings of the targets, as run_checks takes them."""
    plan = make_plan(name)
    targets = ("trainer", "accelerator", "launch", "env", "peft")
    document = {target: dict(plan[target]) for target in targets if plan[target]}
    if plan.engine == "DEEPSPEED":
        document["deepspeed"] = dict(plan["deepspeed"])
    assert not [f for f in run_checks(document) if f.level != "info"]

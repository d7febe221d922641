"""What a run that outgrew one card may lack: DeepSpeed, cards, a disk, a batch that divides. One sentence each."""

from __future__ import annotations

import errno
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.emit import here
from hf_efficient.emit.loop import make_accelerator
from hf_efficient.emit.places import require_offload_folder, require_offload_folders
from hf_efficient.emit.trainer import training_arguments
from hf_efficient.machine import this_machine
from hf_efficient.merge import make_plan

ROOT = Path(__file__).parents[1]
DOORS = pytest.mark.parametrize("build", [training_arguments, make_accelerator], ids=["trainer", "loop"])
NVME = "zero(3, offload='all', nvme_path={!r})"


@pytest.fixture(params=["causal_lm", "accelerate_loop"])
def refused(
    request: pytest.FixtureRequest, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a recipe that must end with exit code 2 and one sentence, which it returns; nothing has been trained."""
    data = tmp_path / "notes.jsonl"
    data.write_text("".join(json.dumps({"text": f"w{number} w1 w2"}) + "\n" for number in range(8)))
    main = runpy.run_path(str(ROOT / "recipes" / f"{request.param}.py"))["main"]

    def run(*plan: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "o"), "--plan", *plan])
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return str(line)

    return run


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what a launcher of several processes sets."""

    def set_them(processes: int = 1, **more: str) -> None:
        variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes)} | more
        for key, value in variables.items():
            monkeypatch.setenv(key, value)

    return set_them


@pytest.mark.parametrize("plan", [("zero2",), ("safe",)], ids=["plan", "launcher"])
def test_a_stage_without_deepspeed_says_how_to_install_it(
    plan: tuple[str, ...], refused: Any, launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever chose the stage: torch first, then the package."""
    machine = this_machine()
    packages = {name: version for name, version in machine.packages.items() if name != "deepspeed"}
    monkeypatch.setattr(here, "this_machine", lambda: replace(machine, packages=packages))
    launched(**({} if plan == ("zero2",) else {"ACCELERATE_USE_DEEPSPEED": "true"}))
    sentence = refused(*plan)
    assert "zero needs the package deepspeed, which is not installed. Install torch first" in sentence
    assert "pip install 'hf-efficient[deepspeed]'" in sentence


def test_without_deepspeed_accelerates_launcher_stops_before_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a launch YAML of ZeRO it is accelerate that speaks, not we; the README says what its words leave out."""
    from accelerate.commands import launch

    monkeypatch.setattr(launch, "is_deepspeed_available", lambda: False)
    arguments = launch.launch_command_parser().parse_args(["--use_deepspeed", "--num_processes", "1", "script.py"])
    with pytest.raises(ImportError, match=r"DeepSpeed is not installed => run `pip3 install deepspeed`"):
        launch.launch_command(arguments)
    assert "`pip install deepspeed ninja` after torch" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("variable", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_more_processes_than_cards_are_refused(
    variable: str, refused: Any, launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL would fail on the second process of a card without the reason; torchrun and DeepSpeed count alike."""
    launched(4, **{variable: "4"}, CUDA_VISIBLE_DEVICES="2,3")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    sentence = refused("safe")
    assert "started 4 processes on this machine, and it shows 2 cards (CUDA_VISIBLE_DEVICES=2,3)" in sentence
    assert "Start it with --num_processes 2." in sentence


@DOORS
def test_as_many_processes_as_cards_may_run(
    build: Any, launched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One card, one process; and on a machine without cards nobody counts."""
    yours = {"output_dir": str(tmp_path)} if build is training_arguments else {}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    build(make_plan("safe"), **yours)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    build(make_plan("safe"), **yours)


def test_an_effective_batch_that_three_processes_cannot_share_is_refused(refused: Any, launched: Any) -> None:
    """Eight samples in twos on three processes: the sentence has the nearest numbers that can."""
    launched(3)
    assert (
        "An effective batch of 8 cannot be exact with 2 per device on 3 processes: 8 / 6 is not whole. "
        "Take effective 6 or 12." in refused("safe", "batch_size(2, effective=8)")
    )


def test_a_missing_folder_and_a_file_are_refused(refused: Any, launched: Any, tmp_path: Path) -> None:
    """DeepSpeed would make the folder wherever it is, on the wrong disk, too."""
    launched()
    missing = tmp_path / "nvme"
    assert f"There is no folder {missing} to offload to: make it on a local NVMe disk" in refused(
        NVME.format(str(missing))
    )
    assert not missing.exists()
    missing.write_text("")
    assert f"{missing} is a file: offloading needs a folder" in refused(NVME.format(str(missing)))


def test_nvme_of_a_launchers_file_is_looked_at_too(refused: Any, launched: Any, tmp_path: Path) -> None:
    """A DeepSpeed file names a folder as a plan does; a device that is no disk needs none, and a disk needs one."""
    file = tmp_path / "ds.json"
    launched(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_CONFIG_FILE=str(file))
    block: dict[str, Any] = {"device": "nvme", "nvme_path": str(tmp_path / "gone")}
    file.write_text(json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": block}}))
    assert f"There is no folder {tmp_path / 'gone'} to offload to" in refused("safe")
    del block["nvme_path"]
    file.write_text(json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": block}}))
    assert "Offload to nvme needs a folder on a local disk: name it with nvme_path." in refused("safe")
    cpu = make_plan("zero(3, offload='all')").override(
        "deepspeed", {"zero_optimization.offload_param.nvme_path": "/nowhere"}, by="you"
    )
    require_offload_folders(cpu)


@pytest.mark.parametrize(("options", "reason"), [("size=64k", "no space left on device"), ("ro", "read-only file")])
def test_a_full_or_read_only_disk_is_refused(options: str, reason: str, tmp_path: Path) -> None:
    """A real disk of 64 KiB, and a real one that cannot be written to, mounted for this one process."""
    mount = f"mount -t tmpfs -o {options} none {tmp_path}"
    code = (
        "from pathlib import Path; from hf_efficient.emit.places import require_offload_folder\n"
        f"require_offload_folder(Path({str(tmp_path)!r}))"
    )
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    run = subprocess.run(
        [*inside, f'{mount} && exec "$0" -c "$1"', sys.executable, code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ValueError: Cannot offload to {tmp_path}: {reason}" in run.stderr
    assert "Free it, or name another one." in run.stderr


def test_a_disk_that_refuses_late_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that allocate late, such as NFS, are full only when the block is synced."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=f"Cannot offload to {tmp_path}: no space left on device"):
        require_offload_folder(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_with_room_is_left_as_it_was(tmp_path: Path) -> None:
    """The block that is tried is gone afterwards; what fails while it is written leaves nothing either."""
    require_offload_folder(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_write_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """Where nobody may mount a disk: the kernel itself refuses a file larger than the process may write."""
    code = (
        "import resource; from pathlib import Path; from hf_efficient.emit.places import require_offload_folder\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); require_offload_folder(Path({str(tmp_path)!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ValueError: Cannot offload to {tmp_path}: file too large" in run.stderr
    assert not list(tmp_path.iterdir())

"""What there is to copy into a project: every name that finds its file, and the one that is made for a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.cli import main
from hf_efficient.shipped import copy, shipped

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))


@pytest.mark.parametrize(
    ("name", "file"),
    [("zero3", "zero3.json"), ("zero3.json", "zero3.json"), ("launch/zero3", "zero3.yaml"),
     ("zero3.yaml", "zero3.yaml"), ("launch/zero3.yaml", "zero3.yaml"), ("ddp", "ddp.yaml"), ("cpu", "cpu.yaml"),
     ("single_gpu", "single_gpu.yaml"), ("launch/slurm", "slurm.sh"), ("slurm.sh", "slurm.sh"),
     ("launch/slurm.sh", "slurm.sh")],
)  # fmt: skip
def test_every_spelling_of_a_name_finds_its_file(name: str, file: str, tmp_path: Path) -> None:
    """With and without folder and suffix; a bare name is DeepSpeed's file where there are two."""
    assert copy("configs", name, tmp_path).name == file
    assert (tmp_path / file).read_text() in {one.path.read_text() for one in shipped("configs").values()}


def test_a_list_has_launch_files_among_the_configs(capsys: pytest.CaptureFixture[str]) -> None:
    """`config list` names DeepSpeed and launch files and the one that is made; recipes are recipes alone."""
    assert main(["config", "list", "--json"]) == 0
    rows = {row["name"]: row["doc"] for row in json.loads(capsys.readouterr().out)["configs"]}
    assert {"zero3", "launch/zero3", "launch/two_nodes", "launch/slurm"} <= rows.keys()
    assert all(rows.values())
    assert "--nvme-path" in rows["zero3_nvme"]
    assert main(["recipe", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["recipes"]] == RECIPES


def test_an_nvme_file_is_made_for_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON has the whole path of a folder given from here; the doctor and DeepSpeed's own classes take it."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    from hf_efficient.doctor import examine_files

    disk = tmp_path / "it's a {disk}"
    disk.mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["config", "copy", "zero3_nvme", "new", "--nvme-path", disk.name]) == 0
    path = tmp_path / "new" / "zero3_nvme.json"
    config = json.loads(path.read_text())
    zero = config["zero_optimization"]
    assert {zero[key]["nvme_path"] for key in ("offload_optimizer", "offload_param")} == {str(disk)}
    assert not examine_files([path]).findings
    zero |= {key: 1000 for key, value in zero.items() if value == "auto"}
    DeepSpeedZeroConfig(**zero)
    numbers = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    filled = config | numbers | {"gradient_clipping": 1.0, "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    assert DeepSpeedConfig(filled).zero_config.offload_param.device == "nvme"
    for key in ("offload_optimizer", "offload_param"):
        del config["zero_optimization"][key]["nvme_path"]
    path.write_text(json.dumps(config))
    assert [finding.code for finding in examine_files([path]).findings] == ["zero-nvme-without-path"] * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["zero3_nvme"], "add --nvme-path /local_nvme"),
        (["zero3_nvme", "--nvme-path", ""], "add --nvme-path /local_nvme"),
        (["zero3_nvme.json", "--nvme-path", "missing"], "missing to offload to"),
        (["zero3_nvme", "--nvme-path", "file"], "file is a file"),
        (["zero3", "--nvme-path", "."], "zero3 offloads to no disk"),
        (["launch/zero3", "--nvme-path", "."], "copy zero3_nvme"),
        (["zero3_nvm"], "did you mean zero3_nvme?"),
        (["dpp"], "did you mean ddp?"),
        (["launch/zreo3"], "did you mean launch/zero3?"),
        (["launch/zero3.json"], "There is no config 'launch/zero3.json'"),
    ],
)
def test_a_copy_that_cannot_be_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and neither file nor folder is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["config", "copy", words[0], "new", *words[1:]]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert sentence in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's own words stand in the sentence."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_efficient.emit.places.tempfile.NamedTemporaryFile", full)
    assert main(["config", "copy", "zero3_nvme", str(tmp_path / "new"), "--nvme-path", str(tmp_path)]) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

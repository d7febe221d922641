"""The command `doctor`: exit codes, JSON, SARIF, tables, silences, and what it never does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.checks.check import checks
from hf_efficient.cli import main
from hf_efficient.doctor.pages import PAGES

ROOT = Path(__file__).parents[2]
TRAIN = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = TrainingArguments("out", warmup_ratio=0.1, bf16=True, per_device_train_batch_size=4)
Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2", dtype="float32"), args=args, train_dataset=[]).train()
"""
FINE = TRAIN.replace("warmup_ratio", "warmup_steps")


def _script(folder: Path, text: str = TRAIN) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    main(["doctor", *argv, "--json"])
    return json.loads(capsys.readouterr().out)


def test_an_error_is_exit_1_and_nothing_wrong_is_0(tmp_path: Path) -> None:
    """As the house has it: 0 fine, 1 a finding of level error, 2 bad usage."""
    assert main(["doctor", _script(tmp_path)]) == 1
    assert main(["doctor", _script(tmp_path, FINE)]) == 0


def test_a_missing_path_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and no other file is judged."""
    assert main(["doctor", _script(tmp_path), str(tmp_path / "launch.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"error: There is no file \S*launch\.yaml: .*\n", said.err)


def test_an_unknown_card_is_exit_2(tmp_path: Path) -> None:
    """A card that the table lacks cannot be checked against."""
    assert main(["doctor", _script(tmp_path), "--gpu", "A100"]) == 2


def test_an_unreadable_file_is_a_finding_and_the_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated YAML stands beside what the script has wrong."""
    (tmp_path / "launch.yaml").write_text("deepspeed_config: {zero_stage: [")
    found = _json(capsys, _script(tmp_path), str(tmp_path / "launch.yaml"))
    assert {"unreadable", "renamed-argument"} <= {row["code"] for row in found["findings"]}


def test_json_has_findings_and_what_is_effective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding has six keys; each knob its value, its author and its line."""
    data = _json(capsys, _script(tmp_path))
    row = next(row for row in data["findings"] if row["code"] == "renamed-argument")
    assert set(row) == {"code", "level", "what", "why", "fix", "where"}
    assert row["where"].endswith("train.py:3")
    assert data["effective"]["precision"] == {"value": "bf16", "by": "bf16=True", "file": f"{tmp_path}/train.py:3"}


def test_the_file_that_wins_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launch file's accumulation beats the script's under DeepSpeed, and the table says so."""
    script = "from accelerate import Accelerator\naccelerator = Accelerator(gradient_accumulation_steps=8)\n"
    launch = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 2\n"
    (tmp_path / "launch.yaml").write_text(launch + "num_processes: 4\n")
    data = _json(capsys, _script(tmp_path, script), str(tmp_path / "launch.yaml"))
    knob = data["effective"]["gradient_accumulation_steps"]
    assert (knob["value"], knob["file"]) == (2, f"{tmp_path}/launch.yaml:4")


def test_the_table_groups_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file stands once, its findings below it with line, code, why and fix; then the knobs."""
    main(["doctor", _script(tmp_path)])
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path}/train.py\n  error line 3: ")
    assert out.index("[renamed-argument]") < out.index("why: ") < out.index("fix: ") < out.index("effective")


def test_sarif_names_rule_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Version 2.1.0: each result points at a rule of the same driver and at a line."""
    main(["doctor", _script(tmp_path), "--format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert {result["level"] for result in run["results"]} <= {"error", "warning", "note"}
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("train.py")
    assert place["region"]["startLine"] == 3


def test_a_comment_silences_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a reason the finding goes and is told as silenced; without one it stays, and that is said."""
    note = "# hf-efficient: ignore[renamed-argument]"
    with_reason = TRAIN.replace("\nargs", f"\n{note} we pin transformers 4\nargs")
    data = _json(capsys, _script(tmp_path, with_reason))
    assert "renamed-argument" not in {row["code"] for row in data["findings"]}
    assert [row["reason"] for row in data["silenced"]] == ["we pin transformers 4"]
    without = _json(capsys, _script(tmp_path, TRAIN.replace("\nargs", f"\n{note}\nargs")))
    codes = {row["code"] for row in without["findings"]}
    assert {"renamed-argument", "silence-without-reason"} <= codes


def test_pyproject_silences_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By code, with a reason."""
    table = "[tool.hf-efficient.doctor.silence]\nrenamed-argument = 'transformers 4 is pinned'\nunreadable = ''\n"
    table += "renamed-arguments = 'a slip of the pen'\n"
    (tmp_path / "pyproject.toml").write_text(table)
    data = _json(capsys, _script(tmp_path))
    assert {row["code"] for row in data["findings"] if row["level"] != "info"} == {
        "silence-without-reason",
        "silence-unknown-code",
    }
    assert [row["code"] for row in data["silenced"]] == ["renamed-argument"]


def test_a_script_is_never_run(tmp_path: Path) -> None:
    """What it would write is not there afterwards, nor is it imported."""
    text = f"open({str(tmp_path / 'proof')!r}, 'w')\nraise SystemExit(3)\n" + TRAIN
    main(["doctor", _script(tmp_path, text)])
    assert not (tmp_path / "proof").exists()
    assert "train" not in sys.modules


def test_a_code_has_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    """`list checks` names every code, and `explain` prints the page with the releases."""
    main(["list", "checks", "--json"])
    assert {row["name"] for row in json.loads(capsys.readouterr().out)["checks"]} == {*checks(), *PAGES}
    assert main(["explain", "renamed-argument"]) == 0
    assert "holds for" in capsys.readouterr().out
    assert main(["explain", "renamed-argument", "--json"]) == 0
    assert {"name", "doc", "settings", "needs", "checks", "figures"} <= set(json.loads(capsys.readouterr().out))


def test_no_case_is_known_by_name() -> None:
    """No id and no sentence of a case occurs in the package."""
    source = "\n".join(path.read_text() for path in (ROOT / "hf_efficient").rglob("*.py"))
    plain = " ".join(source.split())
    ids = set(re.findall(r"\bH\d\d[a-z]?\b", source))
    for case in map(json.loads, (ROOT / "tests" / "data" / "doctor_cases.jsonl").read_text().splitlines()):
        assert case["id"] not in ids
        for key in ("paraphrase", "right_answer", "fault_class", "symptom"):
            sentences = [s.strip() for s in re.split(r"(?<=[.;:])\s", case[key]) if len(s) > 40]
            assert not [s for s in sentences if s in plain], case["id"]

"""What the README says is run: its ways of use, its commands and its tables."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"<!-- run: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL))
LAUNCHED = dict(re.findall(r"<!-- launch: (\S+) -->\n```\n(.*?)```", README, re.DOTALL))
OUTPUTS = dict(re.findall(r"<!-- output: hf-efficient (.*?) -->\n```\n(.*?)```", README, re.DOTALL))
MEMORY = dict(re.findall(r"<!-- memory: hf-efficient (.*?) -->\n```\n(.*?)```", README, re.DOTALL))
DOCTORED = dict(re.findall(r"<!-- doctor: hf-efficient (.*?) -->\n```\n(.*?)```", README, re.DOTALL))
VERIFIED = dict(re.findall(r"<!-- verify: hf-efficient (.*?) -->\n```\n(.*?)```", README, re.DOTALL))
TEXTS = [" ".join(f"w{(number * 3 + i) % 100}" for i in range(5 + number)) for number in range(24)]


@pytest.fixture
def project(tiny: Path, tmp_path: Path) -> Path:
    """A folder of somebody's own, with data, and with the tiny model where the README has a Hub id."""
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS))
    for name, source in SCRIPTS.items():
        assert "Qwen/Qwen3-0.6B" in source
        (tmp_path / name).write_text(source.replace("Qwen/Qwen3-0.6B", str(tiny)))
    return tmp_path


def _run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.launch
@pytest.mark.parametrize("script", ["trainer.py", "loop.py", pytest.param("sft.py", marks=pytest.mark.slow)])
def test_its_lines_of_python_train(script: str, project: Path) -> None:
    """The Trainer, the SFTTrainer and the loop of the README run in somebody's folder as they stand."""
    run = _run([sys.executable, script], project)
    assert run.returncode == 0, run.stderr[-3000:]
    if script != "loop.py":
        assert "'train_loss'" in run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.launch
def test_what_it_says_to_who_outgrows_a_card_trains(tiny: Path, project: Path) -> None:
    """A recipe and a launch file, copied by its commands into somebody's folder: ZeRO-3, by the launcher."""
    *copies, start = next(iter(LAUNCHED.values())).strip().splitlines()
    for command in copies:
        words = shlex.split(command)
        assert words[0] == "hf-efficient"
        assert _run([sys.executable, "-m", "hf_efficient", *words[1:]], project).returncode == 0
    for told, here in (("--num_processes 4", "--num_processes 2 --main_process_port 0"), ("Qwen/Qwen3-8B", str(tiny))):
        assert told in start
        start = start.replace(told, here)
    words = shlex.split(start.replace("causal_lm.py", f"{ROOT}/tests/launch.py causal_lm.py"))
    run = _run([*words, "--max_steps", "3", "--seq-len", "32"], project, SEEN_IN=str(project))
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    facts = json.loads((project / "rank1.json").read_text())
    assert (facts["engine"], facts["stage"], facts["processes"], len(facts["losses"])) == ("DeepSpeedEngine", 3, 2, 3)
    assert facts["weights"] == pytest.approx(0.5, abs=0.01)
    assert re.search(r"launcher +ZeRO stage 3", run.stdout), run.stdout[-3000:]


def test_the_launch_files_that_it_names_are_shipped() -> None:
    """The table of launch files has all of them but the two for one process, and no other."""
    section = README.split("## Outgrowing one card")[1].split("<!-- launch")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    shipped = {path.stem for path in (ROOT / "recipes" / "launch").glob("*.yaml")}
    assert named == shipped - {"single_gpu", "cpu"}
    assert (ROOT / "recipes" / "launch" / "slurm.sh").is_file()


@pytest.mark.slow
def test_its_memory_of_several_cards_is_a_command(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`memory ... --gpus 4` shows every sharding that the table of launch files has."""
    from hf_efficient.cli import main

    section = README.split("## Outgrowing one card")[1]
    (command,) = re.findall(r"`hf-efficient (memory .*?)`", section)
    small = command.replace("Qwen/Qwen3-8B", str(tiny)).replace("2048", "32")
    assert main(shlex.split(small)) == 0
    shown = capsys.readouterr().out
    assert [row.split()[0] for row in shown.split("by sharding:")[1].splitlines()[2:7]] == [
        "none", "zero(1)", "zero(2)", "zero(3)", "fsdp",
    ]  # fmt: skip


@pytest.mark.parametrize("command", OUTPUTS)
def test_its_outputs_are_real(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An output that the README shows is what the command prints."""
    from hf_efficient.cli import main

    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.rstrip() == OUTPUTS[command].rstrip()


@pytest.mark.parametrize("command", DOCTORED)
def test_what_the_doctor_says_there_is_real(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor's answer that the README shows is what the command prints; it finds errors, so it ends with 1."""
    from hf_efficient.cli import main

    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 1
    assert capsys.readouterr().out.rstrip() == DOCTORED[command].rstrip()


@pytest.mark.launch
@pytest.mark.parametrize("command", VERIFIED)
def test_its_verdicts_are_real(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdicts that the README shows are those of the command; distances are this machine's."""
    from hf_efficient.cli import main
    from hf_efficient.promises.heads import HEADS

    HEADS["qwen3"]().save_pretrained(tmp_path)
    assert main(shlex.split(command.replace("Qwen/Qwen3-0.6B", str(tmp_path)))) == 0
    shown, found = (
        [re.split(r"  +", line)[:3] for line in text.strip().splitlines()]
        for text in (VERIFIED[command], capsys.readouterr().out)
    )
    assert shown == found


@pytest.mark.slow
@pytest.mark.parametrize("command", MEMORY)
def test_its_estimate_is_real(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate that the README shows is what the command prints, to the last digit; it does not fit."""
    from hf_efficient.cli import main
    from hf_efficient.promises.heads import HEADS

    config = HEADS["qwen3"]()  # Qwen3 4B, whose checkpoint is bf16
    config.dtype = "bfloat16"
    config.save_pretrained(tmp_path)
    assert main(shlex.split(command.replace("Qwen/Qwen3-4B", str(tmp_path)))) == 1
    assert capsys.readouterr().out.replace(str(tmp_path), "Qwen/Qwen3-4B").strip() == MEMORY[command].strip()


def test_every_command_that_it_names_exists() -> None:
    """Every `hf-efficient ...` and `make ...` in the README names a command that there is."""
    from hf_efficient.cli import app

    commands = {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"`hf-efficient (\w+)", README)) <= commands
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE)) <= targets


def test_it_has_the_two_commands_and_no_placeholder() -> None:
    """A newcomer needs `make run` and `make test`; nothing is left to fill in."""
    assert "make run " in README
    assert "make test " in README
    assert "PLACEHOLDER" not in README
    assert OUTPUTS
    assert VERIFIED
    assert DOCTORED
    assert len(SCRIPTS) == 5


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_way_of_use_is_about_ten_lines(script: str) -> None:
    """Imports aside, ten lines or a few more."""
    lines = [line for line in SCRIPTS[script].splitlines() if line.strip() and not line.startswith(("from", "import"))]
    assert len(lines) <= 15

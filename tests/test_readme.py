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


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
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
def test_a_copied_deepspeed_file_trains_in_a_stock_script(project: Path) -> None:
    """`config copy` and a script that knows nothing of us: DeepSpeed's engine trains with the plan's stage."""
    assert "hf_efficient" not in SCRIPTS["zero2.py"]
    assert "hf-efficient config copy zero2 ." in README
    copied = _run([sys.executable, "-m", "hf_efficient", "config", "copy", "zero2", "."], project)
    assert copied.returncode == 0, copied.stderr
    told = re.search(r"`(accelerate launch --use_deepspeed --num_processes 1) script.py`", README)
    assert told
    # The engine says what it is at the end of the script, where the README's reader sees nothing.
    source = (project / "zero2.py").read_text().replace("Trainer(model", "trainer = Trainer(model")
    source = source.replace(").train()", ")\ntrainer.train()")
    engine = (
        "engine = trainer.model_wrapped\n"
        "print('ENGINE', type(engine).__name__, engine.zero_optimization_stage(), engine.gradient_clipping())\n"
    )
    (project / "script.py").write_text(source + engine)
    run = _run([*shlex.split(told[1]), "script.py"], project)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert "ENGINE DeepSpeedEngine 2 1.0" in run.stdout


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
    assert len(SCRIPTS) == 4


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_way_of_use_is_about_ten_lines(script: str) -> None:
    """Imports aside, ten lines or a few more."""
    lines = [line for line in SCRIPTS[script].splitlines() if line.strip() and not line.startswith(("from", "import"))]
    assert len(lines) <= 15

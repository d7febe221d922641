"""Recipes through `accelerate launch`: one process, two processes, and DeepSpeed's engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
ONE = ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
TWO = ["--multi_gpu", "--num_processes", "2", *ONE[2:], "--main_process_port", "0"]
pytestmark = pytest.mark.launch


def _launch(launcher: list[str], recipe: str, flags: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["accelerate", "launch", *launcher, str(ROOT / "recipes" / f"{recipe}.py"), *flags]
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """A tiny model, forty texts, and four updates with an effective batch of eight."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(40)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "4",
        "--learning_rate", "0.01", "--seq-len", "32",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_one_process_trains_and_saves(recipe: str, flags: list[str], tmp_path: Path) -> None:
    """`accelerate launch recipes/NAME.py` ends with a summary and a saved model."""
    run = _launch(ONE, recipe, [*flags, "--plan", "cpu"])
    assert run.returncode == 0, run.stderr[-3000:]
    before, after = map(float, re.findall(r"evaluation loss\s+([\d.]+) -> ([\d.]+)", run.stdout)[0])
    assert after < before
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("recipe", [RECIPES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in RECIPES[1:])])
def test_two_processes_share_the_effective_batch(recipe: str, flags: list[str], tmp_path: Path) -> None:
    """On two processes the accumulation halves, one summary is printed, and one model saved."""
    plan = ["--plan", "safe", "batch_size(2, effective=8)"]
    run = _launch(TWO, recipe, [*flags, *plan], ACCELERATE_USE_CPU="true")
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Accumulation 2: 8 samples per update / (2 per device x 2 processes)." in run.stdout, run.stderr[-3000:]
    assert run.stdout.count("What came out") == 1
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("recipe", "plan"),
    [
        ("causal_lm", ["zero2"]),
        pytest.param("accelerate_loop", ["safe", "gradient_clipping(0.25)"], marks=pytest.mark.slow),
    ],
)
def test_an_emitted_launch_file_starts_a_recipe(recipe: str, plan: list[str], flags: list[str], tmp_path: Path) -> None:
    """The YAML of zero2 starts a recipe whose plan is zero2, and one whose plan leaves the engine to the launcher."""
    from hf_efficient.cli import main

    assert main(["emit", "accelerate", "zero2", "-o", str(tmp_path / "zero2.yaml")]) == 0
    run = _launch(
        ["--config_file", str(tmp_path / "zero2.yaml"), "--main_process_port", "0"], recipe, [*flags, "--plan", *plan]
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert "ZeRO stage 2" in run.stdout or recipe == "accelerate_loop"


def test_a_mistake_under_the_launcher_is_one_sentence(flags: list[str]) -> None:
    """`--quiet` leaves the recipe's own sentence and no traceback."""
    run = _launch(["--quiet", *ONE], "causal_lm", [*flags, "--plan", "bf61"])
    assert run.returncode != 0
    assert "error: There is no trick or preset 'bf61': did you mean bf16?" in run.stderr
    assert "Traceback" not in run.stderr

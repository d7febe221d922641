"""What a newcomer has: a clone with nothing installed, `make run`, and the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository without anything that is installed or built."""
    folder = tmp_path_factory.mktemp("clone") / "hf_efficient"
    skip = shutil.ignore_patterns(".venv*", "out", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=skip)
    return folder


def _make(clone: Path, *words: str) -> str:
    """Run make as on a bare machine: nothing of this environment is on the path, and no hub is asked."""
    inherited = {key: os.environ[key] for key in ("HOME", "PATH", "LANG", "TMPDIR") if key in os.environ}
    ours = str(Path(sys.executable).parent)
    inherited["PATH"] = ":".join(folder for folder in inherited["PATH"].split(":") if folder != ours)
    environment = inherited | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run(["make", *words], cwd=clone, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    return run.stdout + run.stderr


def test_make_run_installs_trains_and_says_what_came_out(clone: Path) -> None:
    """On a bare clone `make run` trains offline: the loss falls by 1.5 nats, and the saved model writes text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    printed = _make(clone, "run")
    before, after = map(float, re.findall(r"evaluation loss\s+([\d.]+) -> ([\d.]+)", printed)[0])
    assert before - after >= 1.5
    for line in README.split("<!-- output: make run -->\n```\n")[1].split("```")[0].splitlines():
        # names and words are as the README shows them; figures and the CPU's bf16 are this machine's
        label = re.split(r"\d|  +\S*=", line.strip())[0]
        assert label in printed or "bf16" in line, f"the README shows a line that `make run` does not print: {line}"
    assert "100%" in printed, "a progress bar"
    model = AutoModelForCausalLM.from_pretrained(clone / "out" / "causal_lm")
    tokenizer = AutoTokenizer.from_pretrained(clone / "out" / "causal_lm")
    ids = model.generate(**tokenizer("import os\n", return_tensors="pt"), max_new_tokens=8, min_new_tokens=8)
    assert len(tokenizer.decode(ids[0])) > len("import os\n")


def test_make_run_trains_another_local_model_and_file(clone: Path) -> None:
    """`make run ARGS=...` takes a model and data of yours; nothing is installed again."""
    stamp = clone / ".venv" / ".base"
    installed = stamp.stat().st_mtime
    texts = [f"def f{number}(x):\n    return x + {number}\n" * 5 for number in range(40)]
    (clone / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    flags = "--model out/causal_lm --data notes.jsonl --max_steps 8 --output_dir out/mine --learning_rate 1e-3"
    printed = _make(clone, "run", f"ARGS={flags}")
    before, after = map(float, re.findall(r"evaluation loss\s+([\d.]+) -> ([\d.]+)", printed)[0])
    assert after < before
    assert (clone / "out" / "mine" / "model.safetensors").is_file()
    assert stamp.stat().st_mtime == installed


def test_the_wheel_has_recipes_and_configs(clone: Path, tmp_path: Path) -> None:
    """The wheel is under 1 MB and works from a folder without the repository."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    for kind, name in (
        ("recipe", "causal_lm"),
        ("config", "zero3"),
        ("config", "launch/zero2"),
        ("config", "slurm.sh"),
    ):
        run = subprocess.run(
            [sys.executable, "-P", "-m", "hf_efficient", kind, "copy", name, "."],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
    assert {"causal_lm.py", "zero3.json", "zero2.yaml", "slurm.sh"} <= {path.name for path in tmp_path.iterdir()}

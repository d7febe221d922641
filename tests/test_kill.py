"""One process of two is killed by SIGKILL at a random update; what resumes is the run that was not killed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from launched import Launched, emitted, launch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

UPDATES, EVERY = 9, 2
PLAN = ["--plan", "safe", "batch_size(2, effective=8)", "--without", "data_loading"]
ENGINES = {
    "ddp": (), "zero2": ("zero(2)",), "zero3": ("zero(3)",), "fsdp": ("fsdp",),
}  # fmt: skip
# ZeRO-2's files are ZeRO-3's without the weights, so one door stands for both.
ARMS = [
    (recipe, engine)
    for recipe in ("causal_lm", "accelerate_loop")
    for engine in ENGINES
    if (recipe, engine) != ("causal_lm", "zero2")
]
pytestmark = [pytest.mark.launch, pytest.mark.slow]


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """Texts for an epoch of seven updates, so that a run ends in its second; a learning rate that rises and falls."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number * 7 + i) % 100}" for i in range(4 + number)) for number in range(44)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(tiny), "--data", str(data), "--seq-len", "32", "--learning_rate", "0.01", "--warmup_steps", "3",
        "--max_steps", str(UPDATES), "--save_steps", str(EVERY), *PLAN,
    ]  # fmt: skip


@pytest.mark.parametrize(("recipe", "engine"), ARMS)
def test_a_killed_run_ends_as_if_it_had_not_been(recipe: str, engine: str, flags: list[str], tmp_path: Path) -> None:
    """The losses after the newest checkpoint are equal, to the bit, and so are the weights at the end, which load."""
    yaml, script = emitted(*ENGINES[engine], folder=tmp_path), f"recipes/{recipe}.py"
    dice = random.Random(f"{recipe} {engine}")
    rank, update = dice.randrange(2), dice.randrange(EVERY + 1, UPDATES)
    print(f"{recipe}, {engine}: rank {rank} is killed before update {update}, counted from 0")

    def run(out: str, *more: str, kill: str = "", processes: int = 2) -> Launched:
        asked = [*flags, "--output_dir", str(tmp_path / out), *more]
        return launch(script, asked, yaml=yaml, folder=tmp_path / "seen", env={"KILL": kill}, processes=processes)

    whole = run("whole")
    assert whole.returncode == 0, whole.output[-3000:]
    assert run("killed", kill=f"{rank}:{update}").returncode != 0
    newest = max(int(path.name.split("-")[-1]) for path in (tmp_path / "killed").glob("checkpoint-*"))
    assert newest == update - update % EVERY
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    if engine == "zero3":
        refused = run("killed", "--resume_from_checkpoint", "true", processes=1)
        assert refused.returncode != 0
        assert f"checkpoint-{newest} is of 2 processes and this run has 1" in refused.output
        assert "Traceback" not in refused.output.split("error: ")[0]
    resumed = run("killed", "--resume_from_checkpoint", "true")
    assert resumed.returncode == 0, resumed.output[-3000:]
    ours, theirs = (each.ranks[0]["losses"][newest - UPDATES :] for each in (resumed, whole))
    print("losses", ours, theirs)
    assert ours == theirs
    assert len(set(theirs)) == UPDATES - newest
    _, found = AutoModelForCausalLM.from_pretrained(tmp_path / "killed", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    ends = [load_file(tmp_path / out / "model.safetensors") for out in ("killed", "whole")]
    assert all((ends[0][key] == ends[1][key]).all() for key in ends[1])

"""A run that goes on from a checkpoint is the run that was not interrupted, and what cannot go on is refused."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from hf_efficient.train.loop_fields import save_is_due

ROOT = Path(__file__).parents[1]
Main = Callable[[list[str]], Any]


def main_of(recipe: str) -> Main:
    """Return the `main` of a recipe."""
    main: Main = runpy.run_path(str(ROOT / "recipes" / f"{recipe}.py"))["main"]
    return main


@pytest.fixture(params=["causal_lm", "accelerate_loop"])
def main(request: pytest.FixtureRequest) -> Main:
    """Both doors: Trainer with its own checkpoints, and the loop with ours."""
    return main_of(request.param)


@pytest.fixture(scope="session")
def flags(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model with dropout, and texts for an epoch of five updates, the last of them of one micro-batch."""
    folder = tmp_path_factory.mktemp("resume")
    model, data = folder / "model", folder / "notes.jsonl"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text()) | {"attention_dropout": 0.3}
    (model / "config.json").write_text(json.dumps(config))
    texts = [" ".join(f"w{(number * 7 + i) % 100}" for i in range(4 + number)) for number in range(20)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(model), "--data", str(data), "--seq-len", "16", "--learning_rate", "0.01", "--max_steps", "12",
        "--save_steps", "1", "--logging_steps", "1",
    ]  # fmt: skip


def plan(*more: str) -> list[str]:
    """Return the flags of a plan whose updates have two micro-batches of two samples."""
    return ["--plan", "safe", "batch_size(2, effective=4)", *(more or ("data_loading(0)",))]


def losses(folder: Path) -> list[float]:
    """Return the losses that a checkpoint of either door knows, by update."""
    if not (folder / "trainer_state.json").exists():
        return [loss for _, loss in json.loads((folder / "run.json").read_text())["losses"]]
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def assert_same_end(whole: Path, resumed: Path) -> None:
    """The last checkpoints tell the same losses, and the weights that were saved are equal."""
    assert losses(resumed / "checkpoint-12") == losses(whole / "checkpoint-12")
    assert len(set(losses(whole / "checkpoint-12"))) == 12
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (resumed, whole))
    assert all((ours[key] == theirs[key]).all() for key in theirs)


@pytest.mark.launch
@pytest.mark.parametrize("more", [(), ("data_loading(1)",), ("data_loading(0)", "length_grouping")], ids=str)
def test_it_goes_on_as_if_nothing_had_happened(
    main: Main, flags: list[str], more: tuple[str, ...], tmp_path: Path
) -> None:
    """Within an epoch, at its end and in the next, with dropout: the same losses and the same weights, to the bit."""
    main([*flags, *plan(*more), "--output_dir", str(tmp_path / "whole")])
    for update in (3, 5, 7):
        found, out = tmp_path / "whole" / f"checkpoint-{update}", tmp_path / str(update)
        main([*flags, *plan(*more), "--output_dir", str(out), "--resume_from_checkpoint", str(found)])
        assert_same_end(tmp_path / "whole", out)

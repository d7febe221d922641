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
from hf_efficient.train.same_run import refuse_finished

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
    """A tiny model with dropout, and texts for an epoch of six updates, the last of them of one micro-batch."""
    folder = tmp_path_factory.mktemp("resume")
    model, data = folder / "model", folder / "notes.jsonl"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text()) | {"attention_dropout": 0.3}
    (model / "config.json").write_text(json.dumps(config))
    texts = [" ".join(f"w{(number * 7 + i) % 100}" for i in range(4 + number)) for number in range(19)]
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
@pytest.mark.parametrize(
    "more",
    [(), ("data_loading(1)",), pytest.param(("data_loading(0)", "length_grouping"), marks=pytest.mark.slow)],
    ids=str,
)
def test_it_goes_on_as_if_nothing_had_happened(
    main: Main, flags: list[str], more: tuple[str, ...], tmp_path: Path
) -> None:
    """Within an epoch, at its end and in the next, with dropout: the same losses and the same weights, to the bit."""
    main([*flags, *plan(*more), "--output_dir", str(tmp_path / "whole")])
    for update in (3, 6, 7):
        found, out = tmp_path / "whole" / f"checkpoint-{update}", tmp_path / str(update)
        main([*flags, *plan(*more), "--output_dir", str(out), "--resume_from_checkpoint", str(found)])
        assert_same_end(tmp_path / "whole", out)


@pytest.fixture
def trained(main: Main, flags: list[str], tmp_path: Path) -> list[str]:
    """The flags of a run of three updates that has left its checkpoints, and is to go on from the newest."""
    asked = [*flags, *plan(), "--output_dir", str(tmp_path), "--max_steps", "3"]
    main(asked)
    return [*asked, "--resume_from_checkpoint", "true"]


def refusal(main: Main, flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence with which a recipe stops before it loads anything."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(main.__globals__, "load_causal_lm", lambda *_: pytest.fail("the model is loaded"))
        with pytest.raises(SystemExit) as stopped:
            main(flags)
    assert stopped.value.code == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return sentence


@pytest.mark.launch
def test_another_batch_or_number_of_processes_is_refused(
    main: Main, trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names both numbers and what to do; nothing is loaded."""
    other = [word.replace("effective=4", "effective=8") for word in trained]
    said = refusal(main, other, capsys)
    assert "checkpoint-3 is of a run with 4 samples per update and this one has 8" in said
    note = tmp_path / "checkpoint-3" / "run.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"processes": 2}))
    said = refusal(main, trained, capsys)
    assert "checkpoint-3 is of 2 processes and this run has 1" in said
    assert "--num_processes 2" in said


@pytest.mark.launch
def test_another_engine_is_refused(
    main: Main, trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of ZeRO's is not gone on from without it: run.json tells the engine, stage and offload."""
    note = tmp_path / "checkpoint-3" / "run.json"
    facts = json.loads(note.read_text())
    assert facts["engine"] == "none"
    note.write_text(json.dumps(facts | {"engine": "DEEPSPEED", "stage": 2, "offload": ["optimizer"]}))
    said = refusal(main, trained, capsys)
    assert "is of a run under DeepSpeed stage 2 with optimizer offload and this one is without an engine" in said
    note.write_text(json.dumps(facts | {"engine": "FSDP"}))
    assert "is of a run under FSDP and this one is without an engine" in refusal(main, trained, capsys)


@pytest.mark.launch
def test_trainers_own_files_tell_the_engine_and_hold_the_schedule(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without our note the optimizer's file tells the engine; without scheduler.pt Trainer would begin both anew."""
    main = main_of("causal_lm")
    asked = [*flags, *plan(), "--output_dir", str(tmp_path), "--resume_from_checkpoint", "true"]
    main([*asked[:-2], "--max_steps", "1"])
    folder = tmp_path / "checkpoint-1"
    (folder / "scheduler.pt").rename(tmp_path / "scheduler.pt")
    assert "has no scheduler.pt" in refusal(main, asked, capsys)
    (tmp_path / "scheduler.pt").rename(folder / "scheduler.pt")
    (folder / "run.json").unlink()
    whole = (folder / "optimizer.pt").rename(folder / "optimizer.bin")
    assert "is of a run under FSDP and this one is without an engine" in refusal(main, asked, capsys)
    whole.unlink()
    assert "has no optimizer state" in refusal(main, asked, capsys)
    (folder / "global_step1").mkdir()
    assert "is of a run under DeepSpeed and this one is without an engine" in refusal(main, asked, capsys)


@pytest.mark.launch
def test_another_setting_is_refused(
    main: Main, trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A learning rate or seed that the checkpoint would overrule is named with both values; more updates are not."""
    trained += ["--max_steps", "4"]
    for name, then, now in [
        ("learning_rate", "0.01", "0.02"),
        ("weight_decay", "0.0", "0.1"),
        ("lr_scheduler_type", "linear", "cosine"),
        ("warmup_steps", "0", "2"),
        ("seed", "42", "1"),
    ]:
        said = refusal(main, [*trained, f"--{name}", now], capsys)
        assert f"checkpoint-3 is of a run with --{name} {then} and this one has {now}" in said
        assert f"Give --{name} {then}, or begin anew" in said
    main(trained)
    assert len(losses(tmp_path / "checkpoint-4")) == 4


@pytest.mark.launch
def test_a_run_that_has_ended_is_refused(main: Main, trained: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No update is left by --max_steps, or no epoch by --num_train_epochs."""
    assert "has made the 3 updates of --max_steps, and none is left" in refusal(main, trained, capsys)
    assert "has made the 2 updates" in refusal(main, [*trained, "--max_steps", "2"], capsys)


def test_epochs_that_have_been_made_are_none_to_go_on_with(tmp_path: Path) -> None:
    """By epochs, a run that has made them all is refused, and one that has a part left is not."""
    options = SimpleNamespace(max_steps=-1, num_train_epochs=2.0)
    refuse_finished(tmp_path, options, updates=11, epochs=1.8)
    with pytest.raises(ValueError, match="has made the 2 epochs of --num_train_epochs"):
        refuse_finished(tmp_path, options, updates=12, epochs=2)


def test_a_folder_that_is_not_there_is_named(main: Main, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder, and a number of updates that is none, end in a sentence."""
    said = refusal(main, [*flags, "--resume_from_checkpoint", "out/nothere"], capsys)
    assert "There is no folder out/nothere" in said
    for name in ("save_steps", "logging_steps"):
        said = refusal(main, [*flags, f"--{name}", "1.5"], capsys)
        assert f"--{name} must be an integer if bigger than 1" in said


@pytest.mark.launch
def test_an_epoch_whose_last_window_is_full_is_over_where_it_ends(flags: list[str], tmp_path: Path) -> None:
    """Eleven micro-batches of an update each: after the eleventh the next epoch begins, not this one again."""
    asked = [*flags, "--plan", "safe", "batch_size(2, effective=2)", "data_loading(0)", "--save_steps", "11"]
    main = main_of("accelerate_loop")
    main([*asked, "--output_dir", str(tmp_path / "whole")])
    found = tmp_path / "whole" / "checkpoint-11"
    assert json.loads((found / "run.json").read_text())["epoch"] == 1
    main([*asked, "--output_dir", str(tmp_path / "on"), "--resume_from_checkpoint", str(found)])
    assert_same_end(tmp_path / "whole", tmp_path / "on")


@pytest.mark.launch
def test_an_epoch_whose_last_window_is_not_full_is_saved(main: Main, flags: list[str], tmp_path: Path) -> None:
    """Eleven micro-batches in windows of two: both doors save after the sixth and the twelfth update."""
    main([*flags, *plan(), "--output_dir", str(tmp_path), "--save_strategy", "epoch", "--max_steps", "13"])
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {f"checkpoint-{n}" for n in (6, 12, 13)}


@pytest.mark.launch
def test_a_half_written_checkpoint_is_not_taken_in_silence(
    main: Main, trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is missing or cut off is named, with the checkpoint before; a half-written folder is none."""
    folder = tmp_path / "checkpoint-3"
    optimizer = next(folder.glob("optimizer.*"))
    whole = optimizer.read_bytes()
    for kept in (b"", whole[: len(whole) // 2]):
        optimizer.write_bytes(kept)
        said = refusal(main, trained, capsys)
        assert "checkpoint-3 is half-written, as when a run ends while it saves" in said
        assert f"it has only a part of {optimizer.name}" in said
        assert said.endswith(f"Delete it and resume from {tmp_path / 'checkpoint-2'}.")
    optimizer.write_bytes(whole)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "a part of model.safetensors" in refusal(main, trained, capsys)
    for path in folder.glob("r*_state*"):
        path.unlink()
    assert "has no r" in refusal(main, trained, capsys)
    folder.rename(tmp_path / "tmp-checkpoint-3")
    main(trained)
    assert losses(tmp_path / "checkpoint-3")


@pytest.mark.launch
def test_trainers_own_files_tell_how_many_processes_wrote_them(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without our note a stock checkpoint is counted by its files of random numbers, or by DeepSpeed's shards."""
    main = main_of("causal_lm")
    asked = [*flags, *plan(), "--output_dir", str(tmp_path), "--max_steps", "1"]
    main(asked)
    folder = tmp_path / "checkpoint-1"
    asked += ["--resume_from_checkpoint", "true"]
    assert "has made the 1 updates of --max_steps" in refusal(main, asked, capsys)
    (folder / "run.json").unlink()
    asked += ["--max_steps", "2"]
    state = (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    assert "has no rng_state.pth" in refusal(main, asked, capsys)
    shutil.copy(state, folder / "rng_state_1.pth")
    assert "checkpoint-1 is of 2 processes and this run has 1" in refusal(main, asked, capsys)
    (folder / "global_step1").mkdir()
    (folder / "global_step1" / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").touch()
    said = refusal(main, asked, capsys)
    assert "checkpoint-1 is of 4 processes" in said
    assert f"begin anew from its weights with --model {folder}" in said


def test_each_door_takes_its_own_checkpoints(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop does not go on from Trainer's folders."""
    (tmp_path / "run.json").write_text(json.dumps({"processes": 1}))
    said = refusal(main_of("accelerate_loop"), [*flags, "--resume_from_checkpoint", str(tmp_path)], capsys)
    assert "is no checkpoint of this loop" in said
    said = refusal(main_of("accelerate_loop"), [*flags, "--save_strategy", "best"], capsys)
    assert "take steps, epoch or no" in said


@pytest.mark.launch
def test_the_loop_keeps_as_many_as_asked(flags: list[str], tmp_path: Path) -> None:
    """`--save_total_limit` deletes the oldest; what a save that was interrupted left behind goes too."""
    (tmp_path / "tmp-checkpoint-9").mkdir()
    asked = [*flags, *plan(), "--output_dir", str(tmp_path), "--max_steps", "5", "--save_total_limit", "2"]
    main_of("accelerate_loop")(asked)
    assert {path.name for path in tmp_path.glob("*checkpoint*")} == {"checkpoint-4", "checkpoint-5"}


@pytest.mark.parametrize(
    ("strategy", "steps", "saved"),
    [
        ("steps", 4, [4, 8, 10]),
        ("steps", 0.3, [3, 6, 9, 10]),
        ("steps", 500, [10]),
        ("epoch", 4, [6, 10]),
        ("no", 1, []),
    ],
)
def test_the_loop_saves_when_trainer_does(strategy: str, steps: float, saved: list[int]) -> None:
    """Ten updates, six to an epoch; a step below 1 is a share of them."""
    options = SimpleNamespace(save_strategy=strategy, save_steps=steps)
    due = [n for n in range(1, 11) if save_is_due(options, n, updates=10, epoch_ended=n == 6)]
    assert due == saved


def test_machines_that_share_no_folder_each_see_their_own_files(tmp_path: Path) -> None:
    """Two of four ranks' files are a checkpoint of two on one machine, and of four where there are two machines."""
    from hf_efficient.train import checkpoints, resume

    for rank in (0, 1):
        (tmp_path / f"rng_state_{rank}.pth").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "4")
        assert resume._processes(tmp_path, 4) == 2
        assert checkpoints.ranks_here(4) == [0, 1, 2, 3]
        patch.setenv("LOCAL_WORLD_SIZE", "2")
        patch.setenv("RANK", "1")
        assert resume._processes(tmp_path, 4) == 4
        assert checkpoints.ranks_here(4) == [1]
        assert resume._processes(tmp_path, 1) == 2

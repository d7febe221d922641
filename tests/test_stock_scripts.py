"""Copied DeepSpeed files in a folder of somebody's own: the README's scripts, which know nothing of this package."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_readme import README, SCRIPTS

from hf_efficient.doctor import examine_files

ROOT = Path(__file__).parents[1]
FILES = ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload", "zero3_offload_params")
FAST = "zero2"
"""The file whose loop is in `make test`."""
STEPS, CLIPPING = 20, 0.3
TRAINER, LOOP = SCRIPTS["zero2.py"], SCRIPTS["zero2_loop.py"]
# What a project would choose for itself, and fp32, in which two processes can match one: (README's, the test's).
OWN = {
    TRAINER: [(
        "bf16=True, max_steps=20",
        f"max_steps={STEPS}, max_grad_norm={CLIPPING}, learning_rate=3e-3, lr_scheduler_type='constant', "
        "logging_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2",
    )],
    LOOP: [('mixed_precision="bf16", ', ""), ("shuffle=True", "shuffle=False"), ("lr=2e-5", "lr=3e-3")],
}  # fmt: skip
STRANGER = 'import sys\nassert "hf_efficient" not in sys.modules\n'
"""Ends a script: nothing of ours was imported, by whomever."""


def test_the_readme_says_which_numbers_a_loop_writes() -> None:
    """The sentence has both keys with a number, and 0.0 for no clipping: what `written` puts into the copied file."""
    (sentence,) = re.findall(r"Write both into the copied file:[^.]*?(`.*?)\. The engine", README, re.DOTALL)
    assert re.findall(r'`"(\w+)": [\d.]+`', sentence) == ["gradient_clipping", "gradient_accumulation_steps"]
    assert "`0.0` for none" in sentence


@pytest.mark.parametrize("name", FILES)
def test_the_doctor_says_of_a_stock_loop_what_its_file_leaves_open(name: str, tmp_path: Path) -> None:
    """The copied file: no error and no warning, and that 1.0 is made of "auto"; with the numbers written: nothing."""
    file, script = copied(name, tmp_path), tmp_path / "loop.py"
    script.write_text(LOOP.replace("zero2.json", file.name))
    found = examine_files([script, file]).findings
    assert not [one for one in found if one.level != "info"]
    assert "deepspeed-clipping-auto-in-loop" in {one.code for one in found}
    written(file, clipping=CLIPPING)
    assert not {one.code for one in examine_files([script, file]).findings} & {"deepspeed-clipping-auto-in-loop"}


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("name", FILES)
def test_a_stock_trainer_with_a_copied_file_matches_one_process(
    name: str, project: Path, trained_alone: dict[str, Any]
) -> None:
    """TrainingArguments(deepspeed="NAME.json") on two processes: the engine of the file, one process's training."""
    copied(name, project)
    facts = _launched(_script(TRAINER, name, project), project)
    _require_the_engine(name, facts)
    assert (facts["clipping"], facts["accumulation"], facts["auto"]) == (CLIPPING, 2, [])  # filled from the arguments
    _require_the_same(facts["losses"], project / f"out/checkpoint-{STEPS}", trained_alone)


@pytest.mark.launch
@pytest.mark.parametrize(
    ("name", "clipping"),
    [
        pytest.param(one, clipping, marks=[] if one == FAST else pytest.mark.slow)
        for one, clipping in zip(FILES, ("auto", 0.05, 0.0, 0.05, 0.05, 0.0), strict=True)
    ],
)
def test_a_stock_loop_with_a_copied_file_matches_one_process(name: str, clipping: Any, project: Path) -> None:
    """DeepSpeedPlugin(hf_ds_config="NAME.json"): the engine clips by the file's number, by 1.0 where it is auto."""
    written(copied(name, project), clipping=clipping)
    facts = _launched(_script(LOOP, name, project), project)
    _require_the_engine(name, facts)
    in_force = 1.0 if clipping == "auto" else clipping  # accelerate's own
    assert (facts["clipping"], facts["accumulation"], facts["auto"]) == (in_force, 2, [])
    # A stock loop steps after each batch, whose mean it takes: two batches and two processes are four of them.
    losses = [sum(pair) / 4 for pair in zip(facts["losses"][::2], facts["losses"][1::2], strict=True)]
    _require_the_same(losses, project / "out", _loop_alone(project, in_force))


@pytest.fixture(scope="module")
def make_project(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes folders outside the repository, with rows of one length, so that a mean of means is the mean."""
    texts = [" ".join(f"w{(number * 7 + i * i) % 100}" for i in range(12)) for number in range(8 * STEPS)]

    def make() -> Path:
        folder = tmp_path_factory.mktemp("stranger")
        assert ROOT not in folder.parents
        (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (folder / "notes.txt").write_text("\n".join(texts))
        (folder / "model").symlink_to(tiny)
        return folder

    return make


@pytest.fixture
def project(make_project: Callable[[], Path]) -> Path:
    """One such folder."""
    return make_project()


@pytest.fixture(scope="module")
def trained_alone(make_project: Callable[[], Path]) -> dict[str, Any]:
    """The Trainer script's losses and weights on one process without DeepSpeed: eight rows at once."""
    folder, before = make_project(), Path.cwd()
    source = _script(TRAINER, FAST, folder).read_text()
    for old, new in (
        ('deepspeed="zero2.json", ', ""),
        ("size=2", "size=8"),
        ("accumulation_steps=2", "accumulation_steps=1"),
        (STRANGER, ""),
    ):
        assert old in source
        source = source.replace(old, new)
    (folder / "alone.py").write_text(source)
    os.chdir(folder)
    try:
        runpy.run_path("alone.py", run_name="__main__")
    finally:
        os.chdir(before)
    saved = folder / f"out/checkpoint-{STEPS}"
    history = json.loads((saved / "trainer_state.json").read_text())["log_history"]
    return {"losses": [row["loss"] for row in history if "loss" in row], "weights": _weights(saved)}


def copied(name: str, project: Path) -> Path:
    """Copy a file by the README's command; return its path."""
    from hf_efficient.cli import main

    command = re.search(r"`hf-efficient (config copy zero2 \.)`", README)
    assert command
    words = command[1].replace("zero2", name).split()
    assert main([*words[:-1], str(project)]) == 0
    return project / f"{name}.json"


def written(file: Path, *, clipping: Any) -> None:
    """Write into a copied file what the README tells a loop to write; `auto` leaves the clipping as it was."""
    config = json.loads(file.read_text())
    assert config["gradient_clipping"] == config["gradient_accumulation_steps"] == "auto"
    file.write_text(json.dumps(config | {"gradient_clipping": clipping, "gradient_accumulation_steps": 2}))


def _script(source: str, name: str, project: Path) -> Path:
    """Write a script of the README for the tiny model and the file `name`; return its path."""
    for old, new in [("Qwen/Qwen3-0.6B", "model"), *OWN[source], ("zero2.json", f"{name}.json")]:
        assert old in source
        source = source.replace(old, new)
    (project / "script.py").write_text(source + STRANGER)
    return project / "script.py"


def _launched(script: Path, project: Path) -> dict[str, Any]:
    """Start a script by the README's command, through `tests/launch.py`; return what its first process saw."""
    told = re.search(r"`(accelerate launch --use_deepspeed --num_processes 2) script.py`", README)
    assert told
    plain = "--num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
    run = subprocess.Popen(
        [*shlex.split(f"{told[1]} {plain}"), str(ROOT / "tests" / "launch.py"), str(script)],
        cwd=project,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SEEN_IN": str(project), "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    assert run.returncode == 0, output[-3000:]
    facts: dict[str, Any] = json.loads((project / "rank0.json").read_text())
    return facts


def _require_the_engine(name: str, facts: dict[str, Any]) -> None:
    stage = int(name[4])
    assert (facts["engine"], facts["stage"], facts["processes"]) == ("DeepSpeedEngine", stage, 2)
    assert facts["optimizer"] == pytest.approx(0.5, abs=0.01)
    assert facts["weights"] == pytest.approx(0.5 if stage == 3 else 1.0, abs=0.01)
    assert (facts["updates_by"] == "DeepSpeedCPUAdam") == ("offload" in name), facts["updates_by"]


def _require_the_same(losses: list[float], saved: Path, alone: dict[str, Any]) -> None:
    """Losses within 2e-5, final weights, as `from_pretrained` reads them, within 1e-4 relative L2."""
    import torch

    assert len(losses) == STEPS
    assert alone["losses"][0] - alone["losses"][-1] > 0.1  # it learns: equal losses say something
    assert losses == pytest.approx(alone["losses"], abs=2e-5, rel=0)
    ours, theirs = _weights(saved), alone["weights"]
    assert ours.shape == theirs.shape
    assert torch.linalg.vector_norm(ours - theirs) <= 1e-4 * torch.linalg.vector_norm(theirs)


def _weights(saved: Path) -> Any:
    """Return the weights that `from_pretrained` reads, in one vector of double precision."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(saved)
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def _loop_alone(project: Path, clipping: float) -> dict[str, Any]:
    """Return losses and weights of the same training by torch alone: eight rows at once, in one process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    model = AutoModelForCausalLM.from_pretrained(project / "model", dtype="float32").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lines = (project / "notes.txt").read_text().splitlines()
    losses = []
    for start in range(0, len(lines), 8):
        batch = tokenizer(lines[start : start + 8], return_tensors="pt")
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        if clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "weights": torch.cat([one.detach().double().flatten() for one in model.parameters()])}

"""Every engine on two processes trains as one process does: losses, norms, evaluation and the weights that it saves.

One saved model, dropout 0, eight rows of unequal lengths per update, twenty updates in fp32, a learning rate that
decays, weight decay, and clipping that bites. The recipes run as they stand; only the launch YAML names an engine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FAULTS
from filelock import FileLock
from launched import Launched, emitted, launch
from parity import Bound, Training, difference, distances, training_of

pytestmark = pytest.mark.launch  # seconds in all: not in `make test-fast`

TRAINER, LOOP = "causal_lm", "accelerate_loop"
LIMIT = 1.4
PLAN = ("safe", f"gradient_clipping({LIMIT})")
DEEPSPEED = {"engine": "DeepSpeedEngine", "optimizer": 0.5, "clipping": LIMIT, "accumulation": 2}
BY_TORCH, ON_THE_CPU = {"updates_by": "AdamW"}, {"updates_by": "DeepSpeedCPUAdam"}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "DistributedDataParallel", "stage": 0, "weights": 1.0, "optimizer": 1.0},
    "zero(1)": {**DEEPSPEED, "stage": 1, "weights": 1.0, **BY_TORCH},
    "zero(2)": {**DEEPSPEED, "stage": 2, "weights": 1.0, **BY_TORCH},
    "zero(2, 'optimizer')": {**DEEPSPEED, "stage": 2, "weights": 1.0, **ON_THE_CPU},
    "zero(3)": {**DEEPSPEED, "stage": 3, "weights": 0.5, **BY_TORCH},
    "zero(3, 'optimizer')": {**DEEPSPEED, "stage": 3, "weights": 0.5, **ON_THE_CPU},
    "zero(3, 'all')": {**DEEPSPEED, "stage": 3, "weights": 0.5, **ON_THE_CPU},
    "fsdp": {"engine": "FSDP2 DTensor", "stage": 0, "weights": 0.5, "optimizer": 0.5},
}
"""Engine on two processes -> what each of them must hold of it."""
FAST = {("zero(3)", LOOP), ("fsdp", TRAINER)}
ARMS = [
    pytest.param(engine, recipe, marks=() if (engine, recipe) in FAST else pytest.mark.slow)
    for engine in ENGINES
    for recipe in (TRAINER, LOOP)
]
BF16 = Bound(loss=5e-3, norm=4e-2, weights=2e-2)
"""Three times what was measured: 1.8e-3, 1.1e-2 and 7.6e-3. Clipping left out in fp32 moves a loss by 1.4e-2."""


def train(
    recipe: str,
    engine: str | None,
    *,
    common: Path,
    here: Path,
    plan: Sequence[str] = PLAN,
    env: Mapping[str, str] | None = None,
) -> Launched:
    """Launch `recipe` on two processes with `engine`, or on one with None; it saves its model to `here/saved`."""
    flags = {"--model": common / "model", "--data": common / "notes.jsonl", "--output_dir": here / "saved"}
    flags |= {"--max_steps": 20, "--learning_rate": 0.003, "--weight_decay": 0.1, "--seq-len": 32}
    flags |= {"--per_device_eval_batch_size": 4}
    words = [str(word) for flag in flags.items() for word in flag]
    words += ["--plan", f"batch_size({2 if engine else 4}, effective=8)", *plan]
    yaml = emitted(*([] if engine == "ddp" else [engine]), folder=here) if engine else None
    run = launch(f"recipes/{recipe}.py", words, yaml=yaml, folder=here / "seen", env=env)
    assert run.returncode == 0, run.output[-4000:]
    assert [rank["processes"] for rank in run.ranks] == ([2, 2] if engine else [1])
    return run


@pytest.fixture(scope="session")
def common(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share: the model, texts of 4 to 30 words, and one process's training in `one`."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / "engines"
    with FileLock(root / "engines.lock"):
        if not folder.exists():
            shutil.copytree(tiny, folder / "model")
            texts = [" ".join(f"w{(7 * n + i * (1 + n % 3)) % 100}" for i in range(4 + 5 * n % 27)) for n in range(80)]
            (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            run = train(TRAINER, None, common=folder, here=folder / "one")
            (folder / "one" / "output").write_text(run.output)
    return folder


@pytest.fixture(scope="session")
def reference(common: Path) -> Training:
    """The training of one process without an engine, through Trainer."""
    ranks = [json.loads((common / "one" / "seen" / "rank0.json").read_text())]
    return training_of(Launched(0, (common / "one" / "output").read_text(), ranks), common / "one" / "saved")


@pytest.mark.parametrize(("engine", "recipe"), ARMS)
def test_an_engine_trains_as_one_process(
    engine: str, recipe: str, common: Path, reference: Training, tmp_path: Path
) -> None:
    """The launch YAML's engine trains, holds its shares, knows the plan, and ends where one process does."""
    run = train(recipe, engine, common=common, here=tmp_path)
    for rank in run.ranks:
        assert {key: rank[key] for key in ENGINES[engine]} == ENGINES[engine]
        assert rank["auto"] == []
    ours = training_of(run, tmp_path / "saved")
    print(engine, recipe, distances(ours, reference))
    assert not difference(ours, reference)


@pytest.mark.slow
def test_a_loop_of_ones_own_trains_as_trainer_does(common: Path, reference: Training, tmp_path: Path) -> None:
    """On one process both doors give the same numbers, so that one reference serves for both."""
    run = train(LOOP, None, common=common, here=tmp_path)
    ours = training_of(run, tmp_path / "saved")
    print(distances(ours, reference))
    assert not difference(ours, reference)


def test_the_reference_would_notice(reference: Training) -> None:
    """Its clipping bites in more than half of its updates and leaves others alone; it learns, and ends as evaluated."""
    bitten = [norm > LIMIT for norm in reference.norms]
    assert 10 < sum(bitten) < len(bitten) == 20
    before, after = reference.evaluation
    assert after < before - 0.5
    assert reference.losses[-1] < reference.losses[0] - 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "fault"), [*(("ddp", fault) for fault in FAULTS), ("zero(2)", "kept gradients")])
def test_a_planted_fault_is_reported(
    engine: str, fault: str, common: Path, reference: Training, tmp_path: Path
) -> None:
    """Data that are not shared out, gradients summed or not exchanged, and clipping left out are differences."""
    run = train(LOOP, engine, common=common, here=tmp_path, env={"PLANT": fault})
    ours = training_of(run, tmp_path / "saved")
    print(engine, fault, distances(ours, reference), difference(ours, reference))
    assert difference(ours, reference)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, ""),
        ({"losses": [2.0, 1.00003]}, "The trainings are 3.0e-05 apart in loss, where 2.0e-05 is allowed."),
        ({"losses": [2.0, float("nan")]}, "The trainings are nan apart in loss, where 2.0e-05 is allowed."),
        ({"losses": [2.0]}, "There are 1 losses in place of 2."),
        ({"norms": [1.0, 6.0]}, "The trainings are 1.0e+00 apart in norm, where 2.0e-05 is allowed."),
        ({"norms": []}, "There are 0 norms in place of 2."),
        (
            {"weights": torch.tensor([3.0, 4.001])},
            "The trainings are 2.0e-04 apart in weights, where 1.0e-04 is allowed.",
        ),
        ({"evaluation": (2.0, 1.1)}, "The evaluation is (2.0, 1.1) in place of (2.0, 1.0)."),
    ],
)
def test_the_comparison_says_what_differs(change: dict[str, Any], sentence: str) -> None:
    """A loss, a norm, the weights or the evaluation out of bounds, and updates that are missing, are named."""
    one = Training([2.0, 1.0], [1.0, 3.0], (2.0, 1.0), torch.tensor([3.0, 4.0]))
    assert difference(replace(one, **change), one) == sentence


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "clipping"), [(LOOP, 0.0), (TRAINER, 1.0)])
def test_a_plan_without_clipping(
    recipe: str, clipping: float, common: Path, reference: Training, tmp_path: Path
) -> None:
    """A loop's engine then clips nothing, Trainer's at the default of TrainingArguments, 1.0: both are reported."""
    plan = ("safe", "--without", "gradient_clipping")
    run = train(recipe, "zero(2)", common=common, here=tmp_path, plan=plan)
    assert [rank["clipping"] for rank in run.ranks] == [clipping, clipping]
    assert difference(training_of(run, tmp_path / "saved"), reference)


@pytest.mark.slow
def test_bf16_under_an_engine_is_bf16_on_one_process(common: Path, reference: Training, tmp_path: Path) -> None:
    """ZeRO-3, which rounds its weights, is within bf16's bound of one process's autocast, and neither within fp32's."""
    plan = (*PLAN, "bf16")
    one = train(TRAINER, None, common=common, here=tmp_path / "one", plan=plan)
    two = train(LOOP, "zero(3)", common=common, here=tmp_path / "two", plan=plan)
    ours, theirs = (training_of(run, tmp_path / name / "saved") for run, name in ((two, "two"), (one, "one")))
    print("bf16 zero(3) - one", distances(ours, theirs))
    print("bf16 zero(3) - fp32", distances(ours, reference), "bf16 one - fp32", distances(theirs, reference))
    assert not difference(ours, theirs, BF16)
    assert all(difference(training, reference) for training in (ours, theirs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "sentence", "code"),
    [
        ("{tmp}/raises.py", [], "ValueError: this cannot go on", 1),
        ("recipes/causal_lm.py", ["--plan", "bf61"], "error: There is no trick or preset 'bf61'", 2),
    ],
)
def test_a_script_that_fails_fails_its_launch(
    script: str, flags: list[str], sentence: str, code: int, tmp_path: Path
) -> None:
    """The script's own words are shown and its exit code is named; torchrun and accelerate themselves leave with 1."""
    (tmp_path / "raises.py").write_text('raise ValueError("this cannot go on")\n')
    run = launch(script.format(tmp=tmp_path), flags, yaml=emitted(folder=tmp_path), folder=tmp_path)
    assert (run.returncode, run.ranks) == (1, [])
    assert sentence in run.output
    assert f"exitcode  : {code} (pid:" in run.output

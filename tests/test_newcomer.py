"""A new trick takes one file and one test, and no other edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRICK = '''\
"""Adam without decoupled weight decay, for a test."""

from __future__ import annotations

from hf_efficient.spelling import spelled
from hf_efficient.trick import Trick


@spelled
def newcomer(rate: float = 0.5) -> Trick:
    """Train with RMSprop, for a test.

    Use it to see that one file is enough.

    Not for anything else.

    Published: nothing.
    """
    return Trick(
        family="optimizer",
        saves="half of AdamW's state",
        costs="another training",
        numerics="different",
        shows=("optimizer",),
        trainer={"optim": "rmsprop"},
        optimizer={"name": "rmsprop", "alpha": rate},
    )
'''
TEST = '''\
"""The newcomer's own test."""

from hf_efficient.merge import make_plan


def test_its_optimizer_is_rmsprop(tiny):
    """Both doors get RMSprop with the rate of the trick."""
    from transformers import AutoModelForCausalLM

    from hf_efficient import make_optimizer

    optimizer = make_optimizer(make_plan("newcomer(0.25)"), AutoModelForCausalLM.from_pretrained(tiny))
    assert type(optimizer).__name__ == "RMSprop"
    assert optimizer.defaults["alpha"] == 0.25
'''


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the repository with one file more in tricks/ and one in tests/tricks/."""
    skip = shutil.ignore_patterns("__pycache__", ".venv*", ".git", ".*_cache", "out")
    shutil.copytree(ROOT, tmp_path / "house", ignore=skip)
    (tmp_path / "house" / "hf_efficient" / "tricks" / "newcomer.py").write_text(TRICK)
    (tmp_path / "house" / "tests" / "tricks" / "test_newcomer.py").write_text(TEST)
    return tmp_path / "house"


def _run(house: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(house)}
    return subprocess.run([sys.executable, *command], cwd=house, env=environment, capture_output=True, text=True)


@pytest.mark.launch
def test_one_file_is_listed_explained_and_emitted(house: Path) -> None:
    """`list`, `explain` and `emit` know the new file without another edit."""
    listed = json.loads(_run(house, "-m", "hf_efficient", "list", "tricks", "--json").stdout)
    assert "newcomer" in [row["name"] for row in listed["tricks"]]
    assert "Train with RMSprop" in _run(house, "-m", "hf_efficient", "explain", "newcomer").stdout
    emitted = json.loads(_run(house, "-m", "hf_efficient", "emit", "training-args", "safe", "newcomer(0.1)").stdout)
    assert emitted["optim"] == "rmsprop"


@pytest.mark.slow
def test_the_contract_tests_take_it_up(house: Path) -> None:
    """The generic tests run over the new file; `make generate` is all that the README then needs."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "newcomer", "--rootdir", str(house)]
    run = _run(
        house, *command, "tests/test_every_trick.py", "tests/test_cli.py", "tests/tricks", "tests/test_promises.py"
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert int(run.stdout.split(" passed")[0].split()[-1]) >= 8, run.stdout[-500:]


@pytest.mark.slow
def test_a_careless_newcomer_is_told_what_is_missing(house: Path) -> None:
    """Without its figures and its `close`, the generic tests say so in words."""
    careless = TRICK.replace("Published: nothing.", "").replace('numerics="different"', 'numerics="close"')
    (house / "hf_efficient" / "tricks" / "newcomer.py").write_text(careless)
    run = _run(house, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "newcomer", "tests/test_every_trick.py")
    assert run.returncode == 1
    assert "the docstring has no part that begins with 'Published: '" in run.stdout
    assert "`within` belongs to `close`" in run.stdout

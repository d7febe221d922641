"""The evaluation loss that Trainer tells on two processes, where their rows do not divide, is that of one process."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from launched import ROOT, emitted, launch

pytestmark = pytest.mark.launch


def figures(printed: str) -> list[float]:
    """Return the evaluation losses before and after, as a recipe prints them."""
    return [float(number) for number in printed.split("evaluation loss")[1].split("\n")[0].split("->")]


@pytest.mark.parametrize(
    "engine",
    [
        (),
        pytest.param(("zero(2)",), marks=pytest.mark.slow),
        pytest.param(("zero(3)",), marks=pytest.mark.slow),
        pytest.param(("fsdp",), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_that_are_repeated_do_not_count(
    engine: tuple[str, ...], tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Five rows in batches of four: the second process has one row and a repeat, then nothing but repeats."""
    data = tmp_path / "notes"
    data.mkdir()
    for split, rows in (("train", 16), ("validation", 5)):
        texts = [" ".join(f"w{(number * 7 + i) % 100}" for i in range(4 + 5 * (number % 5))) for number in range(rows)]
        (data / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    asked = [
        "--model", str(tiny), "--data", str(data), "--seq-len", "32", "--learning_rate", "0.01", "--max_steps", "4",
        "--plan", "safe", "batch_size(2, effective=4)", "--without", "data_loading",
    ]  # fmt: skip
    main = runpy.run_path(str(ROOT / "recipes" / "causal_lm.py"))["main"]
    main([*asked, "--output_dir", str(tmp_path / "one"), "--per_device_eval_batch_size", "5"])
    one = figures(capfd.readouterr().out)
    two = launch(
        "recipes/causal_lm.py",
        [*asked, "--output_dir", str(tmp_path / "two"), "--per_device_eval_batch_size", "4"],
        yaml=emitted(*engine, folder=tmp_path),
        folder=tmp_path / "seen",
    )
    assert two.returncode == 0, two.output[-3000:]
    print(one, figures(two.output))
    assert figures(two.output) == pytest.approx(one, abs=1.1e-3)

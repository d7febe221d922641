"""The sharding benchmark: two processes under ZeRO make the update of one, and its check can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FACTS = {"engine": "DeepSpeedEngine", "stage": 2, "weights": 1.0, "optimizer": 0.5}


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return benchmarks/sharded.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return pytest.importorskip("sharded")


@pytest.mark.slow
@pytest.mark.parametrize(("exact", "verdict", "ratio"), [(True, "exact", 1), (False, "broken", 4)])
def test_zero_2_keeps_its_promise_on_two_processes(sharded: Any, exact: bool, verdict: str, ratio: int) -> None:
    """RoBERTa's updates are torch's within 1e-5; without `exact_accumulation` 2 steps x 2 processes as long."""
    pytest.importorskip("deepspeed")
    (row,) = sharded.run([sharded.Arm("roberta", "zero(2)", exact)])
    assert (row["verdict"], row["processes"]) == (verdict, 2), row
    assert row["norm_ratio"] == pytest.approx(ratio, abs=1e-5)
    assert (row["gradient_diff"] <= 1e-5) == exact
    assert row["engine"] == "DeepSpeedEngine, stage 2, 1.00 of weights, 0.50 of optimizer"


@pytest.mark.slow
def test_fsdp_keeps_its_promise_where_the_layers_are_named(sharded: Any) -> None:
    """RoBERTa lists its embeddings among its layers, which accelerate cannot shard; named layers make it exact."""
    (row,) = sharded.run([sharded.Arm("roberta", "fsdp", layers="RobertaLayer")])
    assert row["verdict"] == "exact", row
    assert row["engine"] == "FSDP2 DTensor, 0.50 of weights, 0.50 of optimizer"


@pytest.mark.parametrize(
    ("trick", "facts", "right"),
    [
        ("zero(2)", FACTS, True),
        ("zero(2)", FACTS | {"stage": 1}, False),
        ("zero(2)", FACTS | {"optimizer": 1.0}, False),
        ("zero(3)", FACTS | {"stage": 3}, False),
        ("zero(3)", FACTS | {"stage": 3, "weights": 0.5}, True),
        ("fsdp", {"engine": "DistributedDataParallel", "stage": 0, "weights": 1.0, "optimizer": 1.0}, False),
    ],
)
def test_an_engine_that_does_not_shard_is_seen(sharded: Any, trick: str, facts: dict[str, Any], right: bool) -> None:
    """Another engine or stage than the trick's, or a process with more than its share, is a fault."""
    assert (sharded._engine_fault(sharded.Arm("llama", trick), facts) == "") == right


@pytest.mark.launch
def test_a_launch_that_does_not_end_is_a_row(sharded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launcher and workers are ended at the limit, and the row says so."""
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(sharded, "LIMIT", 6.0)
    before = set(psutil.Process().children(recursive=True))  # loaders' workers of earlier tests
    (row,) = sharded.run([sharded.Arm("llama")])
    assert (row["verdict"], row["why"]) == ("broken", "training stops: not done after 6 s")
    assert not set(psutil.Process().children(recursive=True)) - before
    assert sharded.table([row]).count("\n") == 1

"""What the table of memory per card says: the published arithmetic, published runs, and what is estimated today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.deepspeed_page import FILES, MEASURED, configs, page, states
from hf_efficient.machine import Machine
from hf_efficient.memory.results import GIB

ROOT = Path(__file__).parents[1]
SHARDING: dict[str, Any] = json.loads(MEASURED.read_text())
ROWS = SHARDING["rows"]
UPDATE = "the optimizer step"
MODEL_STATES = ("weights", "gradients", "optimizer")


def _row(model: str, file: str, gpus: int) -> dict[str, Any]:
    (row,) = (row for row in ROWS if (row["model"], row["file"], row["gpus"]) == (model, file, gpus))
    return dict(row)


@pytest.mark.parametrize(
    ("file", "gigabytes"), [("zero1", (52.5, 31.4)), ("zero2", (41.3, 16.6)), ("zero3", (30.0, 1.88))]
)
def test_bytes_per_parameter_are_those_of_the_zero_paper(file: str, gigabytes: tuple[float, float]) -> None:
    """7.5 billion parameters on 4 and on 64 GPUs: table 1 of Rajbhandari et al., 2020."""
    found = states(configs()[file])
    assert [7.5 * found.on(cards) for cards in (4, 64)] == pytest.approx(gigabytes, abs=0.06)


def test_a_card_that_updates_holds_what_the_arithmetic_says() -> None:
    """Wherever the peak is the update, weights, gradients and optimizer state are the published bytes per parameter."""
    held = [row for row in ROWS if row["peak_at"] == UPDATE]
    assert {row["file"] for row in held} == {"zero1", "zero2", "zero3"}
    assert {row["gpus"] for row in held} == {1, 2, 4, 8}
    for row in held:
        found = sum(row["breakdown"][part] for part in MODEL_STATES)
        expected = states(configs()[row["file"]]).on(row["gpus"]) * row["params"] / GIB
        assert found == pytest.approx(expected, rel=2e-3), row


def test_offload_leaves_weights_alone_on_the_card() -> None:
    """ZeRO-Offload keeps 2 bytes of weights per parameter, ZeRO-3 shares them or keeps none; it gathers besides."""
    for row in (row for row in ROWS if "offload" in row["file"]):
        weights = states(configs()[row["file"]]).on(row["gpus"]) * row["params"] / GIB
        gathered = row["breakdown"]["weights"] - weights
        assert gathered == pytest.approx(0, abs=0.01) if row["file"] == "zero2_offload" else -0.01 < gathered < 1, row
        assert row["breakdown"]["optimizer"] == 0


def test_host_memory_is_shared_by_the_cards() -> None:
    """All cards together take what one takes, at least 18 bytes per parameter, and with the weights 2 more."""
    for row in (row for row in ROWS if row["gpus"] > 1):
        one = _row(row["model"], row["file"], 1)
        assert row["host_gib"] * row["gpus"] == pytest.approx(one["host_gib"], rel=1e-3, abs=0.01)
        assert ("offload" in row["file"]) == (row["host_gib"] * GIB * row["gpus"] >= 17.9 * row["params"])
    for model in {row["model"] for row in ROWS}:
        optimizer, weights = (_row(model, f"zero3_offload{kind}", 1)["host_gib"] for kind in ("", "_params"))
        assert weights - optimizer == pytest.approx(2 * _row(model, "zero3", 1)["params"] / GIB, rel=1e-3)


def test_a_published_limit_of_offload() -> None:
    """ZeRO-Offload trains 13 billion parameters on one V100 of 32 GB (Ren et al., 2021), and no card trains 70 so."""
    card = Machine.named("V100-32GB").memory_gib
    assert (
        _row("Llama-2-13B", "zero2_offload", 1)["reserved_gib"] < card < _row("Llama-2-13B", "zero2", 1)["reserved_gib"]
    )
    assert not _row("Llama-2-70B", "zero2_offload", 1)["fits"]


def test_the_table_has_every_file_on_every_count() -> None:
    """Four models, six files, 1 to 8 cards; a mark says what fits, and more cards never take a fit away."""
    models = {row["model"] for row in ROWS}
    assert len(ROWS) == len(models) * len(FILES) * 4 == 96
    lines = [line for line in page(SHARDING).splitlines() if line.startswith("| Llama")]
    assert len(lines) == len(models) * len(FILES)
    small, large = SHARDING["cards"]
    for row in ROWS:
        line = next(line for line in lines if row["model"] in line and f"| `{row['file']}` |" in line)
        cell = line.split(" | ")[2 + (1, 2, 4, 8).index(row["gpus"])]
        assert (cell.startswith("**"), cell.startswith("(")) == (small in row["fits"], large not in row["fits"])
        assert large in row["fits"] or small not in row["fits"]
        if row["gpus"] > 1:
            assert {*_row(row["model"], row["file"], row["gpus"] // 2)["fits"]} <= {*row["fits"]}


@pytest.mark.launch
@pytest.mark.parametrize(("file", "gpus"), [("zero2", 8), ("zero3_offload_params", 1)])
def test_a_cell_is_what_is_estimated_today(file: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte that is written: otherwise run `make sharding`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sharding = pytest.importorskip("sharding")
    assert sharding.row("Llama-3.2-1B", file, gpus) == _row("Llama-3.2-1B", file, gpus)


@pytest.mark.slow
@pytest.mark.launch
def test_a_large_cell_is_what_is_estimated_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """70 billion parameters on eight cards."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sharding = pytest.importorskip("sharding")
    assert sharding.row("Llama-2-70B", "zero3", 8) == _row("Llama-2-70B", "zero3", 8)

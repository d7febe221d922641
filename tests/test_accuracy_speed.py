"""The benchmark's speeds: efficiencies are found without the source that they are held against."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_efficient.machine import Machine
from hf_efficient.memory.speed import EFFICIENCY, Efficiency, speed

HERE = Path(__file__).parents[1] / "benchmarks" / "accuracy"
MEASURED = Path(__file__).parents[1] / "docs" / "measured" / "accuracy.json"
CARD = Machine.named("A100-80GB")
MM = ["aten.mm", "forward", "bfloat16", 10**13, 10**9]
ADD = ["aten.add", "forward", "bfloat16", 0, 10**10]
FLASH = ["flash attention", "forward", "bfloat16", 10**13, 10**9]


@pytest.fixture(autouse=True)
def _benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def row(name: str, **others: Any) -> Any:
    """Return what of a row the speeds read."""
    stock = {"id": name, "model": "m", "gpu": "A100-80GB", "ranks": 1, "batch": 1, "seq": 1000, "marks": (),
             "attention": "sdpa", "kernels": "", "source": f"{name} table", "tokens_per_s": 1.0}  # fmt: skip
    return SimpleNamespace(**stock | others)


def plain(*kernels: Any) -> dict[str, Any]:
    """Return a demand as a worker writes it, each kernel ten times."""
    work = [[*kernel, 10] for kernel in kernels]
    return {"work": work, "micro_batches": 1, "tokens": 1000, "update": 0, "traffic": [0, 0, 0], "on_host": 0,
            "tf32": False, "compiled": False}  # fmt: skip


def published(name: str, truth: Efficiency, *kernels: Any, **others: Any) -> Any:
    """Return a run as a card of these efficiencies would have it."""
    import speeds

    demand = speeds.demand_of(row(name), plain(*kernels))
    found = speed(demand, CARD, truth)
    assert found is not None
    told = row(name, tokens_per_s=1000 / found.step_s, **others)
    return speeds.Run(row=told, source=told.source.split()[0], card=CARD, demand=demand)


def test_efficiencies_are_found_on_the_other_sources() -> None:
    """Products and moves of two sources tell the shares; the third is predicted without being asked."""
    import speeds

    truth = speeds.FLAT._replace(bandwidth=0.5, product={**speeds.FLAT.product, "a100": 0.6})
    chosen = [published("a", truth, MM), published("b", truth, ADD), published("c", truth, MM, ADD)]
    found = speeds.calibrated(chosen[:2])
    assert found.product["a100"] == pytest.approx(0.6, rel=0.05)
    assert found.bandwidth == pytest.approx(0.5, rel=0.05)
    predicted = speeds.left_out(chosen)
    assert predicted["c"] == pytest.approx(chosen[2].seconds, rel=0.05)


def test_a_source_does_not_tell_of_itself() -> None:
    """Alone with its card, it is predicted with what was taken at the start."""
    import speeds

    truth = speeds.FLAT._replace(product=dict.fromkeys(speeds.FLAT.product, 0.3))
    (chosen,) = [published("a", truth, MM)]
    start = speed(chosen.demand, CARD, speeds.FLAT)
    assert start is not None
    assert speeds.left_out([chosen])["a"] == pytest.approx(start.step_s)


def test_pairs_differ_and_have_the_same_cards() -> None:
    """One of two pairs is in the right order; a run of another model, and one as fast, make none."""
    import speeds

    runs = [
        SimpleNamespace(row=row(name, model=model), source="s", seconds=seconds,
                        demand=SimpleNamespace(micro_batches=1))
        for name, model, seconds in (("a", "m", 1.0), ("b", "m", 2.0), ("c", "m", 2.04), ("d", "n", 9.0))
    ]  # fmt: skip
    assert speeds.pairs(runs, {"a": 1.0, "b": 3.0, "c": 0.5, "d": 1.0}) == (1, 2)  # type: ignore[arg-type]


def test_kernels_joined_take_as_long_as_each_by_itself() -> None:
    """Sums of operations and bytes, and every launch."""
    import speeds

    work = speeds.joined([[*MM, 3], [*ADD, 5], [*FLASH, 2]], slower=2.0)
    assert sum(times for kernel, times in work.items()) == 10
    assert sum(kernel.flops * times for kernel, times in work.items()) == 3 * 10**13 + 2 * 2 * 10**13
    assert sum(kernel.moved * times for kernel, times in work.items()) == 3 * 10**9 + 5 * 10**10 + 2 * 10**9


def test_the_older_attention_kernel_computes_twice_as_long() -> None:
    """FlashAttention in Triton, as llm-foundry ran it."""
    import speeds

    old, new = (speeds.demand_of(row("a", attention=kind), plain(FLASH)) for kind in ("flash/triton", "flash"))
    assert [sum(k.flops for k in d.work) for d in (old, new)] == [2 * 10**14, 10**14]


def test_the_products_efficiencies_are_those_that_were_found() -> None:
    """To two digits, on all published speeds together: docs/measured/accuracy.json has them."""
    found = json.loads(MEASURED.read_text())["groups"]["speed"]["efficiency"]
    for name, value in EFFICIENCY._asdict().items():
        for kin, own in value.items() if isinstance(value, dict) else {"": value}.items():
            measured = found[name][kin] if kin else found[name]
            assert own == pytest.approx(measured, rel=0.05), (name, kin)

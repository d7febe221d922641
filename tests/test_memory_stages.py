"""Which sharding a run needs: what each takes, the least that fits, what it costs, and what cannot be combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import estimates
import pytest

from hf_efficient import Batch, Machine, make_plan
from hf_efficient.memory import stages as place
from hf_efficient.memory.fit import SPARE
from hf_efficient.memory.results import GIB, Estimate
from hf_efficient.memory.stages import NONE, Sharding, stages
from hf_efficient.plan import Plan
from hf_efficient.promises.heads import configuration

pytestmark = pytest.mark.launch

CONFIG = {
    "vocab_size": 4000, "hidden_size": 4096, "intermediate_size": 8192, "num_attention_heads": 8,
    "num_hidden_layers": 6, "tie_word_embeddings": True,
}  # fmt: skip
BATCH = Batch(size=1, seq_len=128)
NAMES = [NONE, "zero(1)", "zero(2)", "zero(3)", "fsdp"]
OFFLOADED = ["zero(2, 'optimizer')", "zero(3, 'optimizer')", "zero(3, 'all')"]


def made(memory_gib: float) -> Machine:
    """Return an A100 with so much memory."""
    return replace(Machine.named("A100-80GB", gpus=4), gpu="made", memory_gib=memory_gib)


@lru_cache
def found(memory_gib: float | None = None) -> Sharding:
    """Return the stages of a Llama of almost a billion weights on four cards."""
    config = configuration("LlamaConfig", "LlamaForCausalLM", **CONFIG)
    machine = made(memory_gib) if memory_gib else None
    return stages(make_plan("bf16", "zero(2)"), config, batch=BATCH, machine=machine, gpus=4)


def taken(sharding: Sharding) -> dict[str, Estimate]:
    """Return the estimates by the name of their sharding."""
    return {stage.plan: stage.estimate for stage in sharding.stages if stage.estimate}


def test_each_stage_holds_its_share() -> None:
    """Bytes per weight of a rank of four: 4 + 8 whole, 2 + 12/4 in stages 1 and 2, 2/4 + 12/4 in 3, 4/4 + 8/4 in FSDP.

    Stage 3 and FSDP gather some layers besides.
    """
    held = taken(found())
    assert [*held] == NAMES
    params = held[NONE].params
    weights, optimizer = (
        [found.breakdown[part] * GIB / params for found in held.values()] for part in ("weights", "optimizer")
    )
    assert weights[:3] == pytest.approx([4, 2, 2], rel=0.01)
    assert 2 / 4 < weights[3] < 1.2
    assert 4 / 4 < weights[4] < 2.1
    assert optimizer == pytest.approx([8, 3, 3, 3, 2], rel=0.01)


def test_without_a_card_there_is_no_least() -> None:
    """Nothing says what fits, and nothing is said about speed; which cards would do is in each estimate."""
    assert found().least is None
    assert {(row["fits"], row["step_s"], row["costs"]) for row in found().row()["stages"]} == {(None, None, None)}
    assert all(estimate.cards for estimate in taken(found()).values())


def test_a_card_of_stage_1_needs_no_more() -> None:
    """On a card that holds stage 1 and not the whole, that is the least; the plan's own is one of the rows."""
    roomy = taken(found(80.0))
    assert found(80.0).least == found(80.0).stages[0]
    assert roomy[NONE].taken_gib > roomy["zero(1)"].taken_gib + 1
    sharding = found(roomy["zero(1)"].taken_gib / (1 - SPARE) + 0.01)
    assert sharding.least == sharding.stages[1]
    assert taken(sharding)["zero(2)"] is sharding.asked
    assert taken(sharding)[NONE].fits is False


def test_what_a_stage_costs_is_its_step_against_the_least_sharding() -> None:
    """The share of DDP's speed that is lost; tokens are those of all four cards."""
    held = taken(found(80.0))
    for row in found(80.0).row()["stages"]:
        step_s = held[row["plan"]].step_s
        assert row["costs"] == pytest.approx(1 - held[NONE].step_s / step_s)
        assert row["tokens_per_s"] == pytest.approx(4 * 128 / step_s)
        assert row["allocated_gib"] < row["reserved_gib"] < row["device_gib"]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Sharding -> GiB that it takes, of made-up estimates on a card of 10 GiB; the shardings that were asked for."""
    sizes = dict.fromkeys([*NAMES, *OFFLOADED], 20.0)
    spelled = {make_plan(name).tricks[0].name: name for name in sizes if name != NONE}
    asked: list[str] = []

    def again(plan: Plan, batch: Batch) -> Estimate:
        name = next((spelled.get(trick.name, trick.name) for trick in plan.tricks if trick.family == "sharding"), NONE)
        asked.append(name)
        if sizes[name] < 0:
            raise ValueError(f"{name} cannot shard this.\n")
        known = estimates.estimate(timeline=estimates.step(scale=sizes[name] / 14), gpus=4)
        return estimates.on_card(known, gpu="made", capacity=10.0)

    def one(plan: Plan, model: Any, *, batch: Batch, **_: Any) -> Estimate:
        return again(plan, batch)

    monkeypatch.setattr(place, "estimate", one)
    monkeypatch.setattr(place, "estimator", lambda model, **_: again)
    monkeypatch.setitem(sizes, "asked", asked)  # type: ignore[arg-type]
    return sizes


def _of(*names: str) -> Sharding:
    return stages(make_plan(*names), "a model", batch=BATCH, machine=made(10.0), gpus=4)


@pytest.mark.parametrize("least", [*NAMES, *OFFLOADED])
def test_the_first_that_fits_is_the_least(least: str, tried: dict[str, Any]) -> None:
    """From none over the stages to host memory, which is tried where nothing else fits; none of it is asked twice."""
    tried[least] = 5.0
    sharding = _of("bf16", "zero(1)")
    assert sharding.row()["least"] == least
    assert [stage.plan for stage in sharding.stages] == [*NAMES, *(OFFLOADED if least in OFFLOADED else [])]
    assert sorted(tried["asked"]) == sorted(stage.plan for stage in sharding.stages)


def test_nothing_fits(tried: dict[str, Any]) -> None:
    """Offloading has been tried, and no stage is the least."""
    sharding = _of("bf16")
    assert [stage.plan for stage in sharding.stages] == [*NAMES, *OFFLOADED]
    assert (sharding.least, sharding.row()["least"]) == (None, None)


def test_what_cannot_be_combined_is_a_row_with_the_reason(tried: Mapping[str, Any]) -> None:
    """A refusal of the estimate, and what FSDP2 would refuse at its first update, also where that was asked for."""
    tried["zero(3)"] = -1.0  # type: ignore[index]
    whys = {stage.plan: stage.why for stage in _of("bf16", "adamw_8bit", "fsdp").stages}
    assert [*whys] == [*NAMES, *OFFLOADED]
    assert whys["zero(3)"] == "zero(3) cannot shard this."
    assert "adamw_bnb_8bit cannot update" in whys["fsdp"]
    quantized = {stage.plan: stage.why for stage in _of("bf16", "qlora", "zero(2)").stages}
    assert not quantized["zero(2)"]
    factored = {stage.plan: stage.why for stage in _of("bf16", "adafactor", "zero(2)").stages}
    assert "one flat row of all weights" in factored["zero(2)"]
    assert "adafactor cannot update" in factored["fsdp"]
    assert not whys[NONE]
    assert not whys["zero(1)"]


def test_a_sharding_of_ones_own_comes_last(tried: dict[str, Any]) -> None:
    """It is estimated once, as what was asked."""
    tried |= {"fsdp(False)": 5.0, "zero(3)": 6.0}
    sharding = _of("bf16", "fsdp(False)")
    assert [stage.plan for stage in sharding.stages] == [*NAMES, "fsdp(False)"]
    assert sharding.stages[-1].estimate is sharding.asked
    assert tried["asked"].count("fsdp(False)") == 1
    assert sharding.row()["least"] == "zero(3)"


def test_of_equal_shardings_the_faster_is_the_lesser(tried: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 3 and FSDP2 shard the same."""
    tried |= {"zero(3)": 5.0, "fsdp": 5.0}
    assert _of("bf16").row()["least"] == "zero(3)"
    slow = place.estimator("a model", machine=None, gpus=4)

    def quick(plan: Plan, batch: Batch) -> Estimate:
        known = slow(plan, batch)
        return replace(known, tokens_per_s=9999.0) if plan.engine == "FSDP" else known

    monkeypatch.setattr(place, "estimator", lambda model, **_: quick)
    assert _of("bf16").row()["least"] == "fsdp"


def test_one_gpu_has_no_stages() -> None:
    """The sentence says what to pass."""
    with pytest.raises(ValueError, match=r"pass gpus=4 \(--gpus 4\)"):
        stages(make_plan("bf16"), "a model", batch=BATCH, gpus=1)

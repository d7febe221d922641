"""The figures of people's own cases, and that each of them follows every one of its inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.memory import figures

HERE = Path(__file__).parent / "data" / "estimate_cases.jsonl"
SHARED = Path(__file__).parents[2] / "shared" / "cases" / "doctor_cases.jsonl"
"""Where the cases come from: beside a checkout, and nowhere else."""


def estimates(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a file of cases asks of an estimate, by the case's id."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row["estimate"] for row in rows if "estimate" in row}


def _buckets_mib(**inputs: Any) -> tuple[float, ...]:
    """Return what is saved by buckets of 1e7 elements, and by not overlapping."""
    base, *varied = (
        figures.bucket_bytes(**{**inputs, **other})
        for other in ({}, {"reduce_bucket_size": 1e7}, {"overlap_comm": False})
    )
    return tuple((base - other) / 2**20 for other in varied)


FIGURES: dict[str, Callable[..., Any]] = {
    "H02b": figures.state_bytes,
    "H13c": figures.saved_activations,
    "H26a": figures.quantised_weight_bytes,
    "H27": figures.optimizer_state_mib,
    "H35a": figures.kept_logits_gib,
    "H36a": figures.loss_logits_gib,
    "H36b": figures.loss_bytes,
    "H37": _buckets_mib,
    "H38": figures.zero3_states_gib,
    "H39a": figures.logits_gib,
    "H45a": figures.resume_copy_gib,
}
CASES = estimates(HERE)
OTHER: dict[str, Any] = {
    "load_dtype": "float64", "optim": "adafactor", "activation_checkpointing": False, "layers": 8, "gpus": 8,
    "model": {"training": False}, "quant_type": "int8", "blocksize": 128, "double_quant": True, "params": 2_000_000_000,
    "embedding_params": 1_000_000, "optimizer": "lion_8bit", "rows": 77, "seq_len": 1000, "vocab_size": 50_000,
    "logits_dtype": "bfloat16", "tokens": 4096, "dtype": "float64", "labels": False, "loss": "cross_entropy",
    "contiguous_gradients": False, "overlap_comm": False, "reduce_bucket_size": 2e8, "batch_size": 3, "stage": 3,
    "largest_layer_params": 200_000_000, "world_size": 2,
}  # fmt: skip
"""Another value of each input."""
PROPORTIONAL = [("H35a", "rows"), ("H35a", "seq_len"), ("H35a", "vocab_size"), ("H36a", "tokens"),
                ("H36a", "vocab_size"), ("H37", "reduce_bucket_size"), ("H39a", "batch_size"), ("H39a", "seq_len"),
                ("H39a", "vocab_size"), ("H45a", "params")]  # fmt: skip


def asked(inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the keywords of each call: a list means one call for each of its elements."""
    for key, value in inputs.items():
        inner = list(asked(value)) if isinstance(value, dict) else value
        if isinstance(inner, list) and len(inner) > 1:
            yield from ({**inputs, key: each} for each in inner)
            return
    yield inputs


def numbers(value: Any) -> list[float]:
    """Return a figure's numbers."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def figure(name: str, inputs: dict[str, Any]) -> list[float]:
    """Return all numbers that a case's function gives for its inputs."""
    return [number for keywords in asked(inputs) for number in numbers(FIGURES[name](**keywords))]


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_its_figure(name: str) -> None:
    """The case's inputs are the function's keywords, and its values come out within its tolerance."""
    case = CASES[name]
    assert figure(name, case["inputs"]) == pytest.approx(numbers(case["value"]), rel=case["tolerance"])


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, case in CASES.items() for key in case["inputs"]])
def test_a_figure_follows_each_of_its_inputs(name: str, key: str) -> None:
    """Another value of an input gives other numbers; but ranks do not share quantised weights (H26a)."""
    inputs = CASES[name]["inputs"]
    before, after = figure(name, inputs), figure(name, {**inputs, key: OTHER[key]})
    assert (before == after) == (key == "world_size")


@pytest.mark.parametrize(("name", "key"), PROPORTIONAL)
def test_what_is_a_product_doubles_with_its_factors(name: str, key: str) -> None:
    """Twice the rows, tokens, words, bucket or parameters is twice the memory."""
    inputs = next(asked(CASES[name]["inputs"]))
    once, twice = (FIGURES[name](**{**inputs, key: times * inputs[key]}) for times in (1, 2))
    if name == "H37":  # what a smaller bucket saves is what is above that bucket
        once, twice = once[1], twice[1]
    assert numbers(twice) == pytest.approx([2 * number for number in numbers(once)], rel=1e-6)


@pytest.mark.skipif(not SHARED.exists(), reason="the cases' source lies beside a checkout, and there is none here")
def test_the_cases_are_those_of_the_source() -> None:
    """What is tested here is what the file of cases has."""
    assert estimates(SHARED) == CASES


@pytest.mark.parametrize(("stage", "offload", "card", "host"), [
    (0, None, 20 * 800, 0), (1, None, 4 * 800 + 16 * 100, 0), (2, None, 2 * 800 + 18 * 100, 0), (3, None, 18 * 100, 0),
    (1, "optimizer", 4 * 800, 16 * 100), (2, "optimizer", 2 * 800, 16 * 100), (3, "optimizer", 2 * 100, 16 * 100),
    (3, "all", 0, 18 * 100),
])  # fmt: skip
def test_zero_gives_each_rank_its_share(stage: int, offload: str | None, card: int, host: int) -> None:
    """Bytes of 800 parameters over 8 ranks."""
    assert figures.zero_states(800, stage=stage, gpus=8, offload=offload) == (card, host)


def test_zero_shares_what_is_trained() -> None:
    """Frozen weights have neither gradients nor masters."""
    assert figures.zero_states(800, 80, stage=2, gpus=8) == (2 * 800 + 18 * 10, 0)


@pytest.mark.launch
def test_zero_agrees_with_deepspeeds_own_estimators() -> None:
    """Stages 2 and 3 have the bytes that DeepSpeed's estimators give, on the card."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two

    params, largest, gib = 6_805_000_000, 131_000_000, 2**30
    for offload in (False, True):
        ours = figures.zero_states(params, stage=2, gpus=4, offload="optimizer" if offload else None)
        assert two(params, 4, cpu_offload=offload)[1] == pytest.approx(ours.card, abs=4)
    theirs = [three(params, largest, 4, cpu_offload=o, cpu_offload_params=p)[1] / gib for o, p in
              ((True, True), (True, False), (False, False))]  # fmt: skip
    assert figures.zero3_states_gib(params, largest, 4) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: figures.logits_gib(0, 8, 8, "bfloat16"), "batch_size=0 .* write a whole number of at least 1"),
        (lambda: figures.logits_gib(8, 8, 8.5, "bfloat16"), "vocab_size=8.5 .* write a whole number"),
        (lambda: figures.logits_gib(8, 8, True, "bfloat16"), "vocab_size=True .* write a whole number"),
        (lambda: figures.logits_gib(8, 8, 8, "bf16"), "no dtype .* 'bf16': did you mean bfloat16"),
        (lambda: figures.state_bytes("float32", "adam"), "There is no optimizer 'adam'"),
        (lambda: figures.loss_bytes("float32", "NoSuchLoss"), "There is no loss"),
        (lambda: figures.saved_activations({}, True, 4), "write {'training': True}"),
        (lambda: figures.saved_activations({"training": 1}, True, 4), "write True or False"),
        (lambda: figures.quantised_weight_bytes("nf5", 64, False, 8), "write 'nf4' or 'fp4' or 'int8'"),
        (lambda: figures.quantised_weight_bytes("nf4", 63, False, 8), "blocksize=63 .* write 32 or"),
        (lambda: figures.optimizer_state_mib(8, 9, "sgd"), "count all parameters in params"),
        (lambda: figures.zero_states(8, 9, stage=2, gpus=1), "count all parameters in params"),
        (
            lambda: figures.zero_states(8, stage=2, gpus=1, offload="all"),
            "at stage 2='all' .* write None or 'optimizer'",
        ),
        (lambda: figures.zero3_states_gib(8, 9, 1), "a layer is a part of the model"),
        (lambda: figures.bucket_bytes(4, True, True, 8, "float16"), "stage=4 .* write 0 or 1"),
    ],
)
def test_bad_values_are_refused_with_what_to_write(call: Callable[[], Any], sentence: str) -> None:
    """A number, a name or a switch that cannot be is a ValueError that says what to write instead."""
    with pytest.raises(ValueError, match=sentence):
        call()

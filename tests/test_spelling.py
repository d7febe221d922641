"""A trick's name is the call that makes it."""

from __future__ import annotations

import pytest

from hf_efficient.merge import parse
from hf_efficient.presets import PRESETS
from hf_efficient.spelling import read
from hf_efficient.tricks import catalogue


@pytest.mark.parametrize(
    "spelling",
    [
        "bf16",
        "zero(3)",
        "zero(3, 'optimizer')",
        "zero(offload='optimizer')",
        "batch_size(8, 64)",
        "gradient_clipping(0.5)",
    ],
)
def test_a_spelling_makes_the_trick_that_writes_itself_the_same(spelling: str) -> None:
    """Read, made and written again, a spelling is read as the same trick."""
    trick = parse(spelling)
    assert parse(trick.name) == trick


def test_a_bare_name_means_the_defaults() -> None:
    """`zero`, `zero()` and `zero(2)` are one trick with one name."""
    assert parse("zero") == parse("zero()") == parse("zero(2)") == parse("zero(stage=2)")
    assert parse("zero(2)").name == "zero"


@pytest.mark.parametrize(
    "text",
    ["", "zero(", "zero(3)(4)", "zero(__import__('os'))", "a.b", "1", "zero(*[3])", "bf16; fp16", "zero(3, **{})"],
)
def test_what_is_no_literal_call_is_refused_and_not_run(text: str) -> None:
    """Only names and calls with literals are read; the sentence says how to write one."""
    with pytest.raises(ValueError, match=r"is no trick or preset|no argument|must be"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("zero(4)", "zero: stage must be 1, 2 or 3, not 4."),
        ("zero(True)", "zero: stage must be 1, 2 or 3, not True."),
        ("zero(2, offload='all')", "only stage 3 shards weights"),
        ("zero(offlod='all')", "zero has no argument 'offlod': did you mean offload?"),
        ("gradient_accumulation(0)", "steps must be a whole number of at least 1, not 0."),
        ("gradient_accumulation(2.5)", "steps must be a whole number of at least 1, not 2.5."),
        ("gradient_clipping(-1)", "max_norm must be a number of at least 0, not -1."),
        ("gradient_clipping('1')", "max_norm must be a number of at least 0, not '1'."),
        ("data_loading(pinned=1)", "pinned must be True or False, not 1."),
        ("compile('foo')", "backend must be 'inductor', 'aot_eager' or 'eager', not 'foo'."),
        ("bf16(1)", "too many positional arguments"),
        ("safe(1)", "safe is a preset and takes no arguments"),
        ("activation_chekpointing", "did you mean activation_checkpointing?"),
        ("laen", "did you mean lean?"),
    ],
)
def test_a_wrong_call_gets_one_sentence(text: str, sentence: str) -> None:
    """A wrong name, argument or value is named, with what would be right."""
    with pytest.raises(ValueError, match=r".") as error:
        parse(text)
    assert sentence in str(error.value)


def test_nan_is_no_number() -> None:
    """A limit that is not a number is refused, since nothing compares with it."""
    with pytest.raises(ValueError, match="max_norm must be a number"):
        catalogue()["gradient_clipping"](float("nan"))


def test_tricks_and_presets_share_one_namespace() -> None:
    """No name is both a trick and a preset."""
    assert not catalogue().keys() & PRESETS.keys()


def test_reading_gives_name_arguments_and_keywords() -> None:
    """`read` splits a call without running it."""
    assert read("zero(3, offload='all')") == ("zero", (3,), {"offload": "all"})

"""Traced steps against real ones on this CPU, byte by byte: ten architectures under six plans."""

from __future__ import annotations

from collections import Counter

import pytest
from reality import ARCHITECTURES, LEAST, LIMIT, MOST, WAYS, Compared, compare

SAMPLE = (
    ("llama of 28 layers", "bf16"),
    ("bert", "adafactor"),
    ("t5", "checkpointing"),
    ("vit", "accumulation"),
    ("whisper", "lora"),
    ("qwen3 moe", "adamw"),
)
"""One of each plan."""


def _hold(found: Compared) -> None:
    assert abs(found.error) <= LIMIT, f"{found.peak:,} bytes traced, {found.real:,} real: {found.error:+.2%}"
    assert LEAST <= found.params <= MOST


@pytest.mark.launch
@pytest.mark.parametrize(("architecture", "way"), SAMPLE)
def test_a_traced_peak_is_the_real_one(architecture: str, way: str) -> None:
    """The peak is within 2 % of what MemTracker sees in a real second step."""
    _hold(compare(architecture, way))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_traced_peaks_are_the_real_ones(architecture: str) -> None:
    """They are within 2 % under all six plans; two at least lie in activations or logits, and one in the update."""
    where: Counter[str] = Counter()
    for way in WAYS:
        found = compare(architecture, way)
        _hold(found)
        where[found.where] += 1
    assert where["activations"] >= 2
    assert where["optimizer"] >= 1


def test_the_sample_has_every_plan() -> None:
    """Ten architectures, six plans, and each plan once in the sample."""
    assert (len(ARCHITECTURES), len(WAYS)) == (10, 6)
    assert sorted(way for _, way in SAMPLE) == sorted(WAYS)

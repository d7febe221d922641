"""What the figures are asked with: whole numbers, and dtypes by name. ValueError for anything else."""

from __future__ import annotations

from typing import Any

import torch

from hf_efficient.wording import unknown

DTYPES = ("float32", "bfloat16", "float16", "float64")


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as a whole number of at least `least`; 5e8 is one."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value != value // 1 or value < least:
        raise ValueError(f"{name}={value!r} is no number of such things: write a whole number of at least {least}.")
    return int(value)


def switch(name: str, value: Any) -> bool:
    """Return `value`, which is on or off."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} says neither yes nor no: write True or False.")
    return value


def dtype_named(name: Any) -> torch.dtype:
    """Return the floating-point dtype of torch that has this name."""
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise unknown("dtype of weights or logits called", name, DTYPES)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    """Return `value`, which is among those that are known."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is not among those with a figure: write {' or '.join(map(repr, known))}.")
    return value

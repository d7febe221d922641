"""Releases before 4.48 choose a class for each kind of attention; FlashAttention's needs its package to be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from hf_efficient.memory.flash import NAME

KINDS = ("llama", "mistral", "mixtral", "granite")


@contextmanager
def flash_classes(wanted: bool) -> Iterator[None]:
    """Let the classes of FlashAttention be built in place of those of sdpa, and find the function that they call."""
    changed = []
    for kind in KINDS if wanted else ():
        module = import_module(f"transformers.models.{kind}.modeling_{kind}")
        classes = getattr(module, f"{kind.upper()}_ATTENTION_CLASSES", None)
        if classes is not None:
            changed.append((classes, classes["sdpa"]))
            classes["sdpa"] = classes["flash_attention_2"]
            vars(module).setdefault(NAME, None)
    try:
        yield
    finally:
        for classes, before in changed:
            classes["sdpa"] = before

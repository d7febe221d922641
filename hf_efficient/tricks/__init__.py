"""Every trick, one file each: the file is named after its one public function, and finding it is all it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hf_efficient.trick import Trick

_NAMES = sorted(module.name for module in iter_modules(__path__))

# `from hf_efficient.tricks import bf16` is to give the function: importing the file has put the module there.
globals().update({name: getattr(import_module(f"{__name__}.{name}"), name) for name in _NAMES})


def catalogue() -> dict[str, Callable[..., Trick]]:
    """Return every trick's function under its name, in alphabetical order."""
    return {name: globals()[name] for name in _NAMES}


@cache
def defaults() -> tuple[Trick, ...]:
    """Return every trick with its default arguments, in alphabetical order."""
    return tuple(make() for make in catalogue().values())

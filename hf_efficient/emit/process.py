"""What a plan sets for the whole process: environment variables and torch's switches."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from hf_efficient.plan import Plan

_SWITCHED: dict[str, Any] = {}
"""Torch's switches that a plan has changed in this process, as they were before."""
_VARIABLES: dict[str, str | None] = {}
"""Environment variables likewise; None where there was none."""
_READERS: list[weakref.ref[Any]] = []
"""The arguments whose Trainer, once it is made, reads those variables."""


@contextmanager
def switched(plan: Plan) -> Iterator[None]:
    """Switch the process to `plan`, and back where what is built in the meantime fails."""
    switch_process(plan)
    try:
        yield
    except BaseException:
        switch_process(Plan())
        raise


def read_by(arguments: Any) -> None:
    """Note that `arguments`, once their Trainer is made, will read the variables that are set now."""
    _READERS[:] = [weakref.ref(arguments)] if _VARIABLES else []


def switch_process(plan: Plan) -> None:
    """Set the plan's environment variables and torch's switches, which hold for the whole process.

    What an earlier plan switched is put back first: a plan's silence means the switch as it was. Where arguments of
    that plan are still there, a warning says that their Trainer will not find its variables any more.
    """
    import torch

    wanted = {key: str(value) for key, value in plan["env"].items()}
    if any(reader() for reader in _READERS) and wanted != {key: os.environ.get(key) for key in _VARIABLES}:
        warnings.warn(
            f"{', '.join(sorted(_VARIABLES))} of the arguments made before are taken back: make the Trainer of one "
            "plan before the arguments of the next.",
            stacklevel=3,
        )
    _READERS.clear()
    _exchange(_VARIABLES, wanted, os.environ.get, _set_variable)

    def place(key: str) -> tuple[Any, str]:
        *path, name = key.split(".")
        return reduce(getattr, path, torch), name

    switches = {setting.key: setting.value for setting in plan.settings if setting.target == "torch"}
    _exchange(
        _SWITCHED,
        switches,
        lambda key: getattr(*place(key)),
        lambda key, value: setattr(*place(key), value),
    )


def before_plans(variable: str) -> str | None:
    """Return an environment variable as it was before any plan set it: the launcher's word, or yours."""
    return _VARIABLES[variable] if variable in _VARIABLES else os.environ.get(variable)


def _exchange(
    kept: dict[str, Any], wanted: dict[str, Any], get: Callable[[str], Any], put: Callable[[str, Any], None]
) -> None:
    """Put back what `kept` remembers, put what is wanted, and remember in `kept` what that replaces."""
    before = dict(kept)
    kept.clear()
    for key, value in (before | wanted).items():
        if key in wanted:
            kept[key] = before[key] if key in before else get(key)
        put(key, value)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value

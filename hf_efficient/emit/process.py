"""What a plan sets for the whole process: environment variables and torch's switches."""

from __future__ import annotations

import os
from functools import reduce
from typing import Any

from hf_efficient.plan import Plan

_SWITCHED: dict[str, Any] = {}
"""Torch's switches that a plan has changed in this process, as they were before."""
_VARIABLES: dict[str, str | None] = {}
"""Environment variables likewise; None where there was none."""


def switch_process(plan: Plan) -> None:
    """Set the plan's environment variables and torch's switches, which hold for the whole process.

    What an earlier plan switched is put back first: a plan's silence means the switch as it was.
    """
    _set_variables({key: str(value) for key, value in plan["env"].items()})
    import torch

    wanted = {setting.key: setting.value for setting in plan.settings if setting.target == "torch"}
    before = {key: _SWITCHED.pop(key) for key in tuple(_SWITCHED)}
    for key, value in (before | wanted).items():
        *path, name = key.split(".")
        holder = reduce(getattr, path, torch)
        if key in wanted:
            _SWITCHED[key] = before.get(key, getattr(holder, name))
        setattr(holder, name, value)


def _set_variables(wanted: dict[str, str]) -> None:
    before = {key: _VARIABLES.pop(key) for key in tuple(_VARIABLES)}
    for key, value in (before | wanted).items():
        if key in wanted:
            _VARIABLES[key] = before.get(key, os.environ.get(key))
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value

"""Your values against the plan's tricks: yours win, switch tricks off, and need what the tricks need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.plan import Plan
from hf_efficient.trick import Trick
from hf_efficient.tricks import catalogue

Target = Literal["trainer", "accelerator", "dataloader"]


def take_yours(plan: Plan, target: Target, yours: Mapping[str, Any]) -> Plan:
    """Return `plan` with your values in place of its own, `by="you"`.

    A trick whose switch you turn off (`torch_compile=False`) goes with all that it set, and that is said.
    """
    for trick in plan.tricks:
        off = [key for key, value in getattr(trick, target).items() if value is True and not yours.get(key, True)]
        if off:
            plan = plan.remove(trick).note(f"{trick.name} is left out: you pass {off[0]}={yours[off[0]]!r}.")
    return plan.override(target, yours, by="you")


def needs_of_yours(plan: Plan, target: Target, yours: Mapping[str, Any]) -> tuple[Trick, ...]:
    """Return the tricks that your values amount to and the plan has not: what they need, your values need too."""
    made = (make() for make in catalogue().values())
    return tuple(trick for trick in made if _is_made_by(getattr(trick, target), yours) and trick not in plan.tricks)


def _is_made_by(settings: Mapping[str, Any], yours: Mapping[str, Any]) -> bool:
    return bool(settings) and all(key in yours and yours[key] == value for key, value in settings.items())

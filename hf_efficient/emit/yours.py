"""Your values against the plan's tricks: yours win, switch tricks off, and need what the tricks need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.plan import Conflict, Plan
from hf_efficient.trick import Trick
from hf_efficient.tricks import defaults

Target = Literal["trainer", "sft", "accelerator", "dataloader"]


def take_yours(plan: Plan, target: Target, yours: Mapping[str, Any]) -> Plan:
    """Return `plan` with your values in place of its own, `by="you"`.

    A trick whose switch you turn off (`torch_compile=False`), or that has needs and whose optimizer you exchange
    (`optim="adamw_torch"`) or nothing left to set beside your values, goes with all that it set, and that is said.
    Raises Conflict for a bare fp8 of yours.
    """
    _refuse_bare_fp8(plan, yours)
    for trick in plan.tricks:
        key = _taken_away(trick, target, yours)
        if key:
            plan = plan.remove(trick).note(f"{trick.name} is left out: you pass {key}={yours[key]!r}.")
    return plan.override(target, yours, by="you")


def refuse_what_breaks(plan: Plan, yours: Mapping[str, Any], *, sft: bool = False) -> None:
    """Raise Conflict for a field of yours that a trick could not work with; for SFTConfig its own values count."""
    for trick in plan.tricks:
        needed = dict(trick.trainer) | (dict(trick.sft) if sft else {})
        for key, harm in trick.insists.items():
            if key in yours and yours[key] != needed[key]:
                raise Conflict(
                    f"{trick.name} needs {key}={needed[key]!r}, since {harm}, and you pass {yours[key]!r}: "
                    "leave one of the two out."
                )


def _refuse_bare_fp8(plan: Plan, yours: Mapping[str, Any]) -> None:
    if (
        yours.get("mixed_precision") == "fp8"
        and "ACCELERATE_FP8_BACKEND" not in plan["env"]
        and "kwargs_handlers" not in yours
    ):
        raise Conflict(
            "You pass mixed_precision='fp8': with accelerate's own defaults the layers in 8 bits would not learn. "
            "Write fp8 in the plan, or pass its recipe among kwargs_handlers."
        )


def _taken_away(trick: Trick, target: Target, yours: Mapping[str, Any]) -> str:
    """Return the key by which you take a trick away, or an empty string."""
    settings = getattr(trick, target)
    changed = [key for key, value in settings.items() if key in yours and yours[key] != value]
    off = [key for key in changed if key in _switch(settings) and (not yours[key] or (key == "optim" and trick.needs))]
    replaced = changed if trick.needs and len(changed) == len(settings) else []
    return next(iter([*off, *replaced]), "")


def _switch(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the setting that turns a trick on: its first one, where that is True or names an optimizer."""
    return {key: value for key, value in list(settings.items())[:1] if value is True or key == "optim"}


def refuse_half_an_optimizer(plan: Plan) -> None:
    """Raise ValueError for an `optim` of yours that needs the layers it is for, which its trick would name."""
    asked = plan["trainer"].get("optim")
    for trick in defaults():
        wants = trick.trainer.get("optim") == asked and "optim_target_modules" in trick.trainer
        if wants and not plan["trainer"].get("optim_target_modules"):
            raise ValueError(
                f"optim={asked!r} needs optim_target_modules: name the trick {trick.name} in the plan, which says "
                "them, or pass them yourself."
            )


def needs_of_settings(plan: Plan, target: Target) -> tuple[Trick, ...]:
    """Return the tricks that your or the launcher's values amount to: what such a trick needs, the values need too."""
    foreign = {s.key: s.value for s in plan.settings if s.target == target and s.by in ("you", "launcher")}
    return tuple(
        trick for trick in defaults() if _is_made_by(getattr(trick, target), foreign) and trick not in plan.tricks
    )


def _is_made_by(settings: Mapping[str, Any], yours: Mapping[str, Any]) -> bool:
    # What is only switched off makes no trick: fp8 keeps bf16 off, and bf16=False alone is not fp8.
    wanted = _switch(settings) or {key: value for key, value in settings.items() if value is not False}
    return bool(wanted) and all(key in yours and yours[key] == value for key, value in wanted.items())

"""What to change so that a run fits: the cheapest changes first, each tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import NamedTuple

from hf_efficient.memory.results import Batch, Estimate
from hf_efficient.memory.timeline import profile
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.trick import Trick

Again = Callable[[Plan, Batch], Estimate]
Phases = Mapping[str, Mapping[str, float]]
"""Phase -> part -> GiB."""

WANTED = 3
TRIED = 9
"""How many combinations are estimated, of those that should fit by what each change does alone."""
AT_ONCE = 4
HALF, ONE = "half the batch", "one row at a time"


class Change(NamedTuple):
    """A trick to add, in the place of one of its family, and what it costs."""

    spelling: str
    costs: str


ORDER = (
    Change("attention('sdpa')", "nothing"),
    Change("fused_loss", "nothing, but Liger's kernels"),
    Change("evaluation", "a copy of the logits to the host every batch"),
    Change("bf16", "rounding to 16 bits"),
    Change("adamw_8bit", "moments in 8 bits"),
    Change(HALF, "smaller, slower pieces"),
    Change("activation_checkpointing", "16 to 30 % of the speed, as published"),
    Change(ONE, "smaller, slower pieces"),
    Change("activation_checkpointing(offload=True)", "copies to the host and back"),
    Change("adafactor", "another optimizer"),
    Change("lora", "only adapters train"),
    Change("qlora", "only adapters train, on weights in 4 bits"),
)
"""From what costs nothing to what is another training."""


@dataclass(frozen=True, eq=False)
class _Tried:
    change: Change
    phases: Phases


def cheapest(plan: Plan, batch: Batch, now: Estimate, again: Again) -> list[str]:
    """Return up to three sentences, each some changes that together make the run fit, the cheapest first.

    `now` does not fit; `again` estimates another plan and batch. Each change is estimated alone; combinations that
    should fit by that are estimated until three do. Empty where nothing that was tried fits.
    """
    found: list[str] = []
    alone: list[_Tried] = []
    enough: set[str] = set()
    for change in _usable(plan, batch):
        if _family(change) in enough:
            continue  # more of the same
        estimate, words = _estimate(plan, batch, (change,), again)
        if estimate is None:
            continue
        if estimate.fits:
            enough.add(_family(change))
            found.append(_sentence(words, estimate, (change,)))
        else:
            alone.append(_Tried(change, profile(estimate.timeline)))
        if len(found) == WANTED:
            return found
    return found + _together_found(plan, batch, now, alone, again)[: WANTED - len(found)]


def _together_found(plan: Plan, batch: Batch, now: Estimate, alone: Sequence[_Tried], again: Again) -> list[str]:
    """Return sentences for combinations that fit. What was hoped of those before tempers what is hoped of the next."""
    limit = _limit(now)
    worked: list[set[str]] = []
    found: list[str] = []
    hope, tries = 1.0, 0
    for chosen, expected in _promising(now, alone):
        names = {change.spelling for change in chosen}
        if expected * hope > limit or any(smaller <= names for smaller in worked):
            continue
        estimate, words = _estimate(plan, batch, chosen, again)
        tries += 1
        if estimate is not None and estimate.fits:
            worked.append(names)
            found.append(_sentence(words, estimate, chosen))
        elif estimate is not None:
            hope = max(hope, estimate.allocated_gib / expected)
        if len(found) == WANTED or tries == TRIED:
            break
    return found


def _sentence(words: str, estimate: Estimate, chosen: Sequence[Change]) -> str:
    costs = "; ".join(dict.fromkeys(change.costs for change in chosen))
    just = ", which only just fits" if estimate.tight else ""
    return f"{words}: needs {estimate.taken_gib:.1f} GiB{just} (costs {costs})"


def _estimate(plan: Plan, batch: Batch, chosen: Sequence[Change], again: Again) -> tuple[Estimate | None, str]:
    try:
        new_plan, new_batch, words = _changed(plan, batch, chosen)
        return again(new_plan, new_batch), words
    except ValueError:
        return None, ""  # not made for this model, or against what the plan says


def _limit(now: Estimate) -> float:
    """Return the GiB of the highest phase that would fit."""
    capacity, margin = now.capacity_gib or 0.0, now.margin_gib or 0.0
    return max(now.moments.values()) * capacity / (capacity - margin)


def _promising(now: Estimate, alone: Sequence[_Tried]) -> list[tuple[tuple[Change, ...], float]]:
    """Return the combinations that should fit if each did to every phase what it does to it alone, cheapest first."""
    rank = {change: place for place, change in enumerate(ORDER)}
    sets = [s for number in range(2, AT_ONCE + 1) for s in combinations(alone, number) if _apart(s)]
    phases = profile(now.timeline)
    expected = {s: _together(phases, s) for s in sets}
    fitting = [s for s in expected if expected[s] <= _limit(now)]
    # what is another training comes last, and among equals what changes least
    fitting.sort(key=lambda s: (max(rank[t.change] for t in s), len(s), sum(rank[t.change] for t in s)))
    return [(tuple(tried.change for tried in s), expected[s]) for s in fitting]


def _together(now: Phases, chosen: Sequence[_Tried]) -> float:
    """Return the GiB that a combination should need: each part of each phase shrinks as with each change."""
    highest = 0.0
    for phase, parts in now.items():
        total = 0.0
        for part, before in parts.items():
            left = prod(tried.phases.get(phase, {}).get(part, 0.0) / before for tried in chosen) if before else 0.0
            total += before * left
        highest = max(highest, total)
    return highest


def _apart(chosen: Sequence[_Tried]) -> bool:
    families = [_family(tried.change) for tried in chosen]
    return len(set(families)) == len(families)


def _usable(plan: Plan, batch: Batch) -> list[Change]:
    """Return the changes worth a try."""
    there = {trick.name for trick in plan.tricks}
    adapter = any(trick.family == "adapter" for trick in plan.tricks)
    left_out = there | ({HALF, ONE} if batch.size == 1 else {ONE} if batch.size == 2 else set())
    left_out |= {"lora", "adafactor"} if adapter else set()
    left_out |= set() if batch.eval_rows else {"evaluation"}
    left_out |= set() if plan["model"].get("attn_implementation") == "eager" else {"attention('sdpa')"}
    return [change for change in ORDER if change.spelling not in left_out]


def _family(change: Change) -> str:
    if change.spelling in (HALF, ONE):
        return HALF
    (trick,) = make_plan(change.spelling).tricks
    return trick.family


def _changed(plan: Plan, batch: Batch, chosen: Sequence[Change]) -> tuple[Plan, Batch, str]:
    """Return the plan and the batch with the changes, and what to write for them."""
    words = []
    for change in chosen:
        if change.spelling in (HALF, ONE):
            size = 1 if change.spelling == ONE else batch.size // 2
            steps = batch.size // size * int(plan["trainer"].get("gradient_accumulation_steps", 1))
            batch = replace(batch, size=size)
            plan = _with(plan, f"gradient_accumulation({steps})")
            words.append(f"batch {batch.size} with gradient_accumulation({steps})")
        else:
            plan = _with(plan, change.spelling)
            words.append(change.spelling)
    return plan, batch, " and ".join(words)


def _with(plan: Plan, spelling: str) -> Plan:
    (new,) = make_plan(spelling).tricks
    return in_place(plan, new.family, new)


def in_place(plan: Plan, family: str, *new: Trick) -> Plan:
    """Return the plan with these tricks in the place of those of a family; what you set stays."""
    changed = make_plan(*(trick for trick in plan.tricks if trick.family != family), *new)
    for setting in plan.settings:
        if setting.by == "you":
            changed = changed.override(setting.target, {setting.key: setting.value}, by="you")
    return changed

"""Effective batch = samples per device x accumulation steps x processes, exact or refused."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hf_efficient.plan import Conflict, Plan
from hf_efficient.tricks import catalogue
from hf_efficient.wording import listed

Door = Literal["trainer", "loop"]


class Knobs(NamedTuple):
    """Where a door keeps the samples per device and the accumulation steps: target and key of each."""

    batch: tuple[str, str]
    steps: tuple[str, str]


KNOBS: dict[Door, Knobs] = {
    "trainer": Knobs(
        batch=("trainer", "per_device_train_batch_size"), steps=("trainer", "gradient_accumulation_steps")
    ),
    "loop": Knobs(batch=("dataloader", "batch_size"), steps=("accelerator", "gradient_accumulation_steps")),
}


def effective_batch(plan: Plan, processes: int, door: Door = "trainer") -> int | None:
    """Return the samples that one update sees over `processes`, or None while the plan does not say per device."""
    plan = at_processes(plan, processes, door)
    per_device = _value(plan, KNOBS[door].batch)
    return per_device * (_value(plan, KNOBS[door].steps) or 1) * processes if per_device else None


def at_processes(plan: Plan, processes: int, door: Door = "trainer") -> Plan:
    """Return the plan with the accumulation that its effective batch takes on `processes`.

    A plan that states no effective batch comes back as it is. Raises ValueError when the steps would not be whole,
    with the nearest numbers that are, and Conflict when an accumulation is named that gives another product.
    """
    if processes < 1:
        raise ValueError(f"A run has at least one process, not {processes}.")
    wanted: int | None = plan["loop"].get("effective_batch")
    if wanted is None:
        return plan
    knobs = KNOBS[door]
    per_device = _value(plan, knobs.batch)
    if per_device is None or per_device < 1:
        raise ValueError(f"A batch has at least one sample per device, not {per_device}.")
    steps, rest = divmod(wanted, per_device * processes)
    if rest or not steps:
        raise ValueError(_refusal(per_device, processes, wanted))
    author = plan.author(*knobs.steps)
    given = _value(plan, knobs.steps)
    if author and given != steps:
        raise Conflict(
            f"{plan.author('loop', 'effective_batch')} takes {steps} accumulation steps on {_count(processes)}, "
            f"but {given} is set by {author}, which gives {per_device * (given or 1) * processes}: keep one of the two."
        )
    if author:
        return plan
    sentence = f"Accumulation {steps}: {wanted} samples per update / ({per_device} per device x {_count(processes)})."
    by = plan.author("loop", "effective_batch")
    return plan.add(catalogue()["gradient_accumulation"](steps), by=by).note(sentence)


def _value(plan: Plan, knob: tuple[str, str]) -> int | None:
    target, key = knob
    value = plan[target].get(key)
    return int(value) if value is not None else None


def _refusal(per_device: int, processes: int, wanted: int) -> str:
    one_step = per_device * processes
    near = [n for n in (wanted // one_step * one_step, -(-wanted // one_step) * one_step) if n]
    said = f"An effective batch of {wanted} cannot be exact with {per_device} per device on {_count(processes)}"
    remedies = [f"effective {listed(map(str, near), 'or')}"]
    if wanted % processes == 0:
        remedies.insert(0, f"per_device {listed(map(str, _divisors_near(wanted // processes, per_device)), 'or')}")
    return f"{said}: {wanted} / {one_step} is not whole. Take {listed(remedies, 'or')}."


def _divisors_near(number: int, per_device: int) -> list[int]:
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = [n for n in divisors if n < per_device][-1:]
    return below + [n for n in divisors if n > per_device][:1]


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"

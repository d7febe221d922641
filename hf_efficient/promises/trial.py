"""Runs of one subject through one door, each with what it is to be held against, made once and kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_efficient.effective_batch import at_processes
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.promises.apart import apart
from hf_efficient.promises.doors import Door, compiles, packed
from hf_efficient.promises.faults import Case
from hf_efficient.promises.measure import measure
from hf_efficient.promises.reference import Plain, other_attention, plain_updates, textbook_changes
from hf_efficient.promises.seen import Seen, parts
from hf_efficient.promises.subject import Subject, reference_plan

if TYPE_CHECKING:
    from torch import nn

UPDATE = 8
"""Samples of an update where the plan does not say."""
ONE_LENGTH = 32
"""Tokens to a multiple of which rows are padded for a compiler: made rows are shorter, and one shape is compiled."""
MOST = 256
"""Samples of an update at most: a plan's own effective batch is cut down to it."""


def samples_wanted(plan: Plan, *, update: int = UPDATE) -> int:
    """Return how many samples a trial of `plan` trains on: two whole updates and most of a third."""
    effective = sized(plan, update=update)[1]
    return 2 * effective + max(1, effective * 5 // 8)


def sized(plan: Plan, *, update: int = UPDATE) -> tuple[Plan, int]:
    """Return `plan` with a batch for each micro-step where it says none, and the samples of one update."""
    settled = at_processes(plan, 1, "trainer")["trainer"]
    steps = min(settled.get("gradient_accumulation_steps", 1), MOST)
    batch = settled.get("per_device_train_batch_size") or max(1, update // steps)
    if batch * steps > MOST:
        batch = max(1, MOST // steps)
        plan = _accumulated(plan, steps)
    return _batched(plan, batch), batch * steps


def _accumulated(plan: Plan, steps: int) -> Plan:
    """Return `plan` with so many micro-batches per update, whatever effective batch it asked for."""
    plan = plan.drop("loop", ["effective_batch"])
    plan = plan.override("trainer", {"gradient_accumulation_steps": steps}, by="verify")
    return plan.override("accelerator", {"gradient_accumulation_steps": steps}, by="verify")


def _batched(plan: Plan, batch: int) -> Plan:
    plan = plan.override("trainer", {"per_device_train_batch_size": batch}, by="verify")
    return plan.override("dataloader", {"batch_size": batch}, by="verify")


@dataclass
class Trial:
    """A subject behind a door. Nothing that is kept depends on the order in which it is asked for."""

    subject: Subject
    door: Door
    ours: bool = True
    """Is it a door of ours, whose optimizer and schedule are known?"""
    update: int = UPDATE
    """Samples of an update where the plan does not say."""
    _plain: dict[str, list[Plain]] = field(default_factory=dict)
    _base: dict[Any, Seen] = field(default_factory=dict)

    @cached_property
    def drops(self) -> bool:
        """Say whether the model drops anything in training."""
        with apart():
            return self.subject.drops()

    @cached_property
    def head(self) -> nn.Module:
        """Return the model, to be looked at."""
        with apart():
            return self.subject.load()

    def base(self, plan: Plan, subject: Subject, *, effective: int, dropout: bool) -> Seen:
        """Return the run through the door that `plan` is held against: without its tricks, in batches of `effective`.

        It has the other attention kernel where the plan names one, plain AdamW where the plan names an optimizer, and
        batches half as large where the plan is about their size.
        """
        halved = any(trick.family == "batch" for trick in plan.tricks) and len(plan.tricks) == 1
        base = _batched(Plan(), effective)
        if halved:
            base = _batched(make_plan("gradient_accumulation(2)"), -(-effective // 2))
        base = base.assume("model", other_attention(plan), by="verify")
        if "optim" in plan["trainer"]:
            base = base.assume("trainer", {"optim": "adamw_torch"}, by="verify")
            base = base.assume("optimizer", {"name": "adamw_torch"}, by="verify")
        key = str(base.settings), len(subject.rows), effective, dropout
        if key not in self._base:
            self._base[key] = self.door(base, subject, dropout)
        return self._base[key]

    def case(self, plan: Plan, *, bound: float | None, dropout: bool) -> tuple[Case, Seen]:
        """Return what a run of `plan` showed and how far it is from torch alone, and the run without tricks."""
        plan, effective, rows = self._samples(plan)
        adamw, subject = "optim" in plan["trainer"], self._first(rows)
        seen = self.door(plan, subject, dropout)
        base = self.base(plan, subject, effective=effective, dropout=dropout)
        plain = self._plainly(plan, subject, effective=effective, dropout=dropout)
        if seen.oddly_clipped and base.oddly_clipped:  # by value or in parts: only the same loop shows how
            plain = [
                Plain(torch_alone.loss, dict(zip(base.names, parts(update.gradient, base), strict=True)))
                for torch_alone, update in zip(plain, base.updates, strict=False)
            ]
        own_schedule = any(key in plan["trainer"] for key in ("lr_scheduler_type", "warmup_steps", "learning_rate"))
        rates = tuple(update.lr for update in (seen if own_schedule else base).updates)
        changes = [update.change for update in base.updates]
        if self.ours:
            with apart():
                model = self.subject.model(reference_plan(plan), dropout=dropout)
                changes = textbook_changes(seen, rates, model, adamw=adamw)
        samples = tuple(update.samples for update in base.updates)
        measured = measure(seen, plain, changes)
        excused = own_schedule and any(trick.numerics != "exact" for trick in plan.tricks)
        rates = () if excused else tuple(update.lr for update in base.updates)
        chosen = adamw or any(trick.family in ("optimizer", "adapter", "sharding") for trick in plan.tricks)
        return Case(seen, measured, plain, bound, samples, self.ours, () if chosen else base.settings, rates), base

    def _samples(self, plan: Plan) -> tuple[Plan, int, int]:
        """Return `plan` with its batches, the samples of one update, and the samples in all."""
        if not (compiles(plan) or plan["collator"].get("padding_free")):
            plan, effective = sized(plan, update=self.update)
            return plan, effective, 2 * effective + max(1, effective * 5 // 8)
        # One update: each shape of a batch is compiled for many seconds, and how many rows documents fill is not known
        # before they are packed.
        every = min(samples_wanted(Plan(), update=self.update), len(self.subject.rows))
        steps = at_processes(plan, 1, "trainer")["trainer"].get("gradient_accumulation_steps", 1)
        if compiles(plan) and steps < every:
            every -= every % steps
            plan = plan.assume("collator", {"pad_to_multiple_of": ONE_LENGTH}, by="verify")
        with apart():
            rows = len(packed(plan, self._first(every)))
        steps = min(steps, rows)
        return _accumulated(_batched(plan, -(-rows // steps)), steps), every, every

    def _first(self, rows: int) -> Subject:
        """Return the subject with its first rows, or with all that it has."""
        return replace(self.subject, rows=self.subject.rows[:rows])

    def _plainly(self, plan: Plan, subject: Subject, *, effective: int, dropout: bool) -> list[Plain]:
        attention = plan["model"].get("attn_implementation")
        key = str((reference_plan(plan).settings, attention, len(subject.rows), effective, dropout))
        if key not in self._plain:
            with apart():
                self._plain[key] = plain_updates(subject, plan, effective=effective, dropout=dropout)
        return self._plain[key]

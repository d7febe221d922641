"""What can be wrong with a training whatever its tricks promise: each fault by its mark, with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hf_efficient.promises.measure import Measured
from hf_efficient.promises.reference import Plain
from hf_efficient.promises.seen import Seen

ALIKE = 1.3
"""Factors of two norms that are the same but for the spread of micro-batches; less than the 2 of two steps."""


LEAVE = "leave the trick out of this training"


@dataclass(frozen=True)
class Case:
    """One run, how far it is from torch alone, and the same door without tricks."""

    seen: Seen
    measured: Measured
    plain: Sequence[Plain]
    bound: float | None
    """Within how much its gradient is promised to be; None where it is to differ."""
    samples: tuple[int, ...]
    """Samples that each update of the epoch should see."""
    ours: bool = True
    """Is the optimizer known?"""
    settings: tuple[Any, ...] = ()
    """What the optimizer should run with; empty where the plan chooses one."""
    rates: tuple[float, ...] = ()
    """Learning rate that each update should have; empty where the plan chooses its own schedule."""

    @property
    def steps(self) -> int:
        """Return the micro-batches of a full window."""
        return max((update.forwards for update in self.seen.updates), default=1)

    @property
    def off(self) -> bool:
        """Say whether the gradient is farther off than promised."""
        distance = self.measured.gradient_diff
        return self.bound is not None and distance is not None and not distance <= self.bound


class Fault(NamedTuple):
    """What is wrong, and what to do about it."""

    why: str
    fix: str


def first_fault(case: Case) -> Fault | None:
    """Return what is wrong with a run by the first mark that it bears; None where it bears none."""
    return next((fault for find in _FINDERS if (fault := find(case))), None)


def _no_number(case: Case) -> Fault | None:
    if case.measured.finite:
        return None
    return Fault("a gradient or an update is no finite number", "lower the learning rate, or leave the trick out")


def _asleep(case: Case) -> Fault | None:
    if not case.seen.asleep:
        return None
    what = case.seen.asleep[0] or "the model"
    return Fault(
        f"{what} is in evaluation mode while it trains, so that its dropout does nothing",
        "call model.train() after each evaluation and before the first update",
    )


def _redropped(case: Case) -> Fault | None:
    if not case.seen.redropped:
        return None
    return Fault(
        f"{case.seen.redropped[0]} drops otherwise while it trains than when training began",
        "set dropout in the model's configuration, once and before training",
    )


def _lost_samples(case: Case) -> Fault | None:
    seen = tuple(update.samples for update in case.seen.updates)
    if seen == case.samples and len(seen) != len(case.plain):
        return Fault(
            f"an epoch has {len(seen)} updates instead of {len(case.plain)}, with or without the trick",
            "update once per window of micro-batches and after the last one of the epoch, without drop_last",
        )
    if seen == case.samples:
        return None
    if len(seen) == len(case.samples) - 1 and seen == case.samples[:-1]:
        return Fault(
            f"the last window is dropped: {len(seen)} updates instead of {len(case.samples)}, and "
            f"{case.samples[-1]} of {sum(case.samples)} samples are never learned from",
            "update after the last micro-batch of the epoch as well, however many there are",
        )
    return Fault(
        f"the updates see {_listed(seen)} samples instead of {_listed(case.samples)}",
        "update once per window of micro-batches",
    )


def _schedule(case: Case) -> Fault | None:
    seen = tuple(update.lr for update in case.seen.updates)
    if not case.rates or all(abs(a - b) <= 1e-6 * max(case.rates) for a, b in zip(seen, case.rates, strict=False)):
        return None
    return Fault(
        f"the learning rates of the updates are {_listed(seen)} instead of {_listed(case.rates)}"
        + (f": the scheduler is stepped {case.steps} times per update" if case.steps > 1 else ""),
        "step the scheduler once per update, after optimizer.step()",
    )


def _other_settings(case: Case) -> Fault | None:
    if not case.settings or case.seen.settings == case.settings:
        return None
    new = sorted({str(s) for g in case.seen.settings for s in g} - {str(s) for g in case.settings for s in g})
    return Fault(
        f"the optimizer runs with other settings or groups than without the trick: {_listed(new[:3]) or 'groups'}",
        "keep the optimizer's settings apart from the trick",
    )


def _clipped_scaled(case: Case) -> Fault | None:
    if len(case.seen.clips) != len(case.seen.updates) or not case.off:
        return None
    for (limit, norm), plain in zip(case.seen.clips, case.plain, strict=False):
        vector = plain.gradient(case.seen.names)
        true = float(vector.double().norm()) if vector is not None else norm
        if norm > 100 * max(true, 1e-30) and norm > limit:
            return Fault(
                f"gradients are clipped before they are unscaled: their norm was {norm:.3g} then and is {true:.3g}",
                "call scaler.unscale_(optimizer), or accelerator.clip_grad_norm_, before clipping",
            )
    return None


def _lost_gradients(case: Case) -> Fault | None:
    lost = sorted(
        name
        for update, plain in zip(case.seen.updates, case.plain, strict=False)
        for name in set(update.missing)
        if name in plain.gradients and float(plain.gradients[name].norm()) > 0
    )
    if not lost:
        return None
    return Fault(
        f"{len(set(lost))} parameters get no gradient, {lost[0]} among them",
        "look for requires_grad_(False), detach() and torch.no_grad() around them; reentrant checkpointing loses "
        "gradients where no input of a layer requires one: pass use_reentrant=False",
    )


def _left_out(case: Case) -> Fault | None:
    there = {name for plain in case.plain for name, part in plain.gradients.items() if float(part.norm()) > 0}
    lost = [name for name in case.seen.left_out if name in there]
    if not lost or not case.seen.updates:
        return None
    return Fault(
        f"{len(lost)} parameters have gradients and no optimizer, {lost[0]} among them",
        "give the optimizer all parameters that require gradients, or call requires_grad_(False) on these",
    )


def _not_zeroed(case: Case) -> Fault | None:
    plain = [part for one in case.plain if (part := one.gradient(case.seen.names)) is not None]
    if not case.off or len(plain) < 2 or len(plain) != len(case.seen.updates):
        return None
    wrong = plain[0] + plain[1]
    if float((case.seen.updates[1].gradient - wrong).norm()) > 0.01 * float(wrong.norm()):
        return None
    return Fault("gradients of earlier updates are added to those of later ones", "zero them after each update")


def _leak(case: Case) -> Fault | None:
    if not (case.seen.full_masks and case.off):
        return None
    return Fault(
        "documents of one row see each other: the attention mask that comes with packed rows masks nothing",
        "leave attention_mask out of packed batches (make_collator does), and keep use_cache=False",
    )


def _scaled(case: Case) -> Fault | None:
    ratio, aslant = case.measured.norm_ratio, case.measured.aslant
    steps = case.seen.updates[case.measured.worst].forwards if case.off else 1
    if case.seen.oddly_clipped:
        return None
    # A mean of means of unequal micro-batches points elsewhere than the mean, so that neither is sharp.
    if ratio is None or aslant is None or steps == 1 or aslant > 1:
        return None
    if 1 / ALIKE < ratio * steps < ALIKE:
        return Fault(
            f"the gradient is 1/{steps} of what it should be: the loss is divided by the accumulation steps twice",
            "divide once; accelerator.backward and Trainer divide already",
        )
    if 1 / ALIKE < ratio / steps < ALIKE:
        return Fault(
            f"the gradient is {steps} times what it should be: the loss drops num_items_in_batch, and nothing divides "
            "it by the accumulation steps",
            "take one larger batch: exact_accumulation could not mend this loss"
            if case.seen.report
            else "call exact_accumulation(trainer) before trainer.train(), or divide the sum by num_items_in_batch",
        )
    return None


def _far(case: Case) -> Fault | None:
    if not case.off:
        return None
    distance, ratio = case.measured.gradient_diff, case.measured.norm_ratio
    where = f", most in {_listed(case.measured.where)}" if case.measured.where else ""
    said = (
        f"; {case.seen.report}"
        if case.seen.report and not case.seen.mended and "Accumulation changes" in case.seen.report
        else ""
    )
    return Fault(
        f"the gradient is {distance:.2g} off (promised {case.bound:.2g}), its norm {ratio:.4g} times the right one"
        f"{where}{said}",
        LEAVE,
    )


_FINDERS: tuple[Callable[[Case], Fault | None], ...] = (
    _no_number,
    _asleep,
    _redropped,
    _lost_samples,
    _schedule,
    _other_settings,
    _clipped_scaled,
    _lost_gradients,
    _left_out,
    _not_zeroed,
    _leak,
    _scaled,
    _far,
)
"""From what explains the others to what only states a distance."""


def _listed(values: Sequence[object]) -> str:
    return ", ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)

"""A run and what it promised become a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from hf_efficient.emit.head import NeedsAutocastError, NotMadeForError
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.promises.facts import FACTS
from hf_efficient.promises.faults import LEAVE, Case, first_fault
from hf_efficient.promises.measure import Measured
from hf_efficient.promises.seen import Seen
from hf_efficient.promises.trial import Trial
from hf_efficient.trick import Rounding, Trick
from hf_efficient.wording import one_sentence

EXACT = 1e-5
"""Relative distance that `exact` means, in float32."""
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Rounding of a dtype: the distance from 1 to the next number."""
BESIDE_THE_GRADIENT = ("optimizer", "clipping", "adapter", "evaluation", "data")
"""Families that promise another training and still leave the gradient of what is trained as it is."""
STOPS = "training stops"
ALONE = "no trick is on: look at the loss, the labels and the clipping of what trains, or take Trainer itself"
Word = Literal["exact", "close", "different", "broken", "not exercised here", "does not apply"]


@dataclass(frozen=True)
class Verdict:
    """What became of a promise. Distances are relative; None where nothing was compared.

    `gradient_diff` is the L2 distance of the whole gradient before the optimizer, `norm_ratio` its norm over that of
    the reference, `update_diff` the distance of the optimizer's update from a textbook one made of the same gradient.
    `dropout` has the distances of the pass with the model's own dropout, None where the model drops nothing.
    """

    name: str
    promise: str
    verdict: Word
    loss_diff: float | None = None
    gradient_diff: float | None = None
    norm_ratio: float | None = None
    update_diff: float | None = None
    dropout: dict[str, float | None] | None = None
    why: str = ""
    fix: str = ""

    def row(self) -> dict[str, Any]:
        """Return the verdict as data that JSON can hold."""
        return asdict(self)


def judge(name: str, plan: Plan, trial: Trial) -> Verdict:
    """Train as `plan` says, without dropout and with the model's own, and say whether its promises were kept."""
    promise, bound = promised(plan.tricks), gradient_bound(plan.tricks)
    try:
        case, base = trial.case(plan, bound=bound, dropout=False)
        dropped = trial.case(plan, bound=bound, dropout=True) if trial.drops else None
    except NotMadeForError as error:
        return Verdict(name, promise, "does not apply", why=str(error).rstrip("."))
    except NeedsAutocastError as error:
        if plan["trainer"].get("bf16"):
            return Verdict(name, promise, "broken", why=f"{STOPS}: {error}", fix="leave it out")
        found = judge(name, make_plan(*plan.tricks, "bf16"), trial)
        return replace(found, promise=promise, why=f"{found.why}; beside bf16, which it needs here")
    except Exception as error:  # whatever a training can stop with
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        why = f"{STOPS}: {kind}{one_sentence(error)[:300].rstrip('.')}"
        return Verdict(name, promise, "broken", why=why, fix="leave it out")
    return _judged(name, plan, case, base, dropped)


def _judged(name: str, plan: Plan, case: Case, base: Seen, dropped: tuple[Case, Seen] | None) -> Verdict:
    promise, measured = promised(plan.tricks), case.measured
    if case.bound is not None:
        case = replace(case, bound=max(case.bound, _coarse(base)))
        dropped = (replace(dropped[0], bound=case.bound), dropped[1]) if dropped else None
    found = Verdict(
        name,
        promise,
        "close" if promise == "exact" and not (measured.gradient_diff or 0.0) <= EXACT else promise,
        measured.loss_diff,
        measured.gradient_diff,
        measured.norm_ratio,
        measured.update_diff,
        _distances(dropped[0].measured) if dropped else None,
    )
    fault = first_fault(case) or _update_fault(plan, case)
    if not fault and dropped:
        fault = first_fault(dropped[0] if _same_masks(*dropped) else replace(dropped[0], bound=None))
    if fault:
        fix = ALONE if fault.fix == LEAVE and not plan.tricks else fault.fix
        return replace(found, verdict="broken", why=fault.why, fix=fix)
    unseen = [trick.name for trick in plan.tricks if not _shown(trick, case.seen, base)]
    if unseen and len(unseen) == len(plan.tricks):
        why = "nothing that the run shows of itself is other than without it"
        return replace(found, verdict="not exercised here", why=why)
    if measured.gradient_diff is None:
        why = "the parameters that it trains are not those of the model: there is nothing to compare"
        return replace(found, verdict="not exercised here", why=why)
    why = _kept(plan.tricks, case) + (f"; not exercised here: {', '.join(unseen)}" if unseen else "")
    if not case.ours:
        why += "; the optimizer is yours, and only its settings are compared"
    if case.seen.oddly_clipped:
        why += "; held against itself without the trick, since it clips by value or in parts"
    if case.seen.mended and any(update.forwards > 1 for update in case.seen.updates):
        why += f"; by exact_accumulation: {case.seen.report.partition('. ')[0]}"
    return replace(found, why=why)


def promised(tricks: Sequence[Trick]) -> Literal["exact", "close", "different"]:
    """Return the weakest promise of `tricks`: that of the whole plan."""
    kinds = {trick.numerics for trick in tricks}
    return "different" if "different" in kinds else "close" if "close" in kinds else "exact"


def gradient_bound(tricks: Sequence[Trick]) -> float | None:
    """Return how far the gradient may be off, relative L2; None where a trick makes it another one."""
    if any(trick.numerics == "different" and trick.family not in BESIDE_THE_GRADIENT for trick in tricks):
        return None
    return max([EXACT, *(_size(trick.within) for trick in tricks if trick.within), *map(_frozen, tricks)])


def _frozen(trick: Trick) -> float:
    """Return the rounding of an adapter's frozen weights: another shape of the batch rounds another way."""
    dtype = trick.model.get("dtype")
    return 16 * EPS.get(str(dtype), 0.0) if trick.family == "adapter" and dtype != "float32" else 0.0


def _size(within: Rounding) -> float:
    return within.multiple * EPS[within.dtype]


def _kept(tricks: Sequence[Trick], case: Case) -> str:
    """Say by how much the promise was kept."""
    distance = case.measured.gradient_diff or 0.0
    coarse = max((trick.within for trick in tricks if trick.within), key=_size, default=None)
    if coarse:
        return f"gradient {distance / EPS[coarse.dtype]:.2g} eps of {coarse.dtype} off, at most {coarse.multiple:g}"
    return f"gradient {distance:.1e} off" + (
        f", at most {case.bound:g}" if case.bound is not None else ", as it may be"
    )


def _shown(trick: Trick, seen: Seen, base: Seen) -> bool:
    """Say whether anything that the trick is to change is other than without it."""
    return any(seen.facts.get(fact) != base.facts.get(fact) for fact in trick.shows or FACTS)


def _same_masks(case: Case, base: Seen) -> bool:
    """Say whether dropout drew the same masks as without the trick: same batches, kernels and dtypes."""
    facts = ("shapes", "order", "forwards", "attention", "dtypes", "graphs", "layers")
    return all(case.seen.facts.get(fact) == base.facts.get(fact) for fact in facts)


def _coarse(base: Seen) -> float:
    """Return the rounding of a training that computes in 16 bits whatever the plan says, 0 for one in float32."""
    return max(
        (16 * EPS[dtype] for dtype in base.facts.get("dtypes", ()) if dtype in ("bfloat16", "float16")), default=0
    )


def _distances(measured: Measured) -> dict[str, float | None]:
    return {"loss_diff": measured.loss_diff, "gradient_diff": measured.gradient_diff}


def _update_fault(plan: Plan, case: Case) -> Any:
    from hf_efficient.promises.faults import Fault

    distance = case.measured.update_diff
    textbook = all(trick.numerics == "exact" or trick.family != "optimizer" for trick in plan.tricks)
    if distance is None or distance <= EXACT + case.measured.rounding or not (textbook and case.ours):
        return None
    return Fault(
        f"the optimizer's update is {distance:.2g} off what the textbook makes of the same gradient",
        "take another optimizer",
    )

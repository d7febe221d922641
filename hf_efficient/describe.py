"""What there is, as plain data: lists, pages and plans, for a terminal, for JSON and for the docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from hf_efficient.effective_batch import at_processes, effective_batch
from hf_efficient.emit.engine_rules import fit_every_door
from hf_efficient.machine import Machine, cards
from hf_efficient.merge import make_plan, parse
from hf_efficient.plan import Plan
from hf_efficient.presets import PRESETS, Preset
from hf_efficient.shipped import docs
from hf_efficient.spelling import read
from hf_efficient.trick import Trick
from hf_efficient.tricks import catalogue, defaults
from hf_efficient.wording import unknown

Row = dict[str, Any]


def lists(kind: str | None = None) -> dict[str, list[Row]]:
    """Return the lists of one kind, or of all. Raises ValueError for a kind that there is not."""
    if kind is not None and kind not in KINDS:
        raise unknown("list", kind, KINDS)
    return {name: make() for name, make in KINDS.items() if kind in (None, name)}


def unmet_tricks(machine: Machine) -> list[str]:
    """Return a sentence for each trick, in its defaults, that `machine` does not have what it takes for."""
    return Plan(tricks=defaults()).unmet(machine)


def page(name: str, machine: Machine) -> Row:
    """Return all there is to say about a trick (in any spelling) or a preset, and what `machine` lacks for it.

    Of a check's code it returns what the check finds, why that is wrong, and for which releases.
    """
    try:
        subject = parse(name)
    except ValueError:
        if name in codes():  # asked second, since the checks take a moment to load
            return _check_page(name)
        if "-" in name:  # only codes have hyphens
            raise unknown("check", name, codes()) from None
        raise
    plan = make_plan(subject, machine=machine)
    function = read(name)[0]
    doc = subject.doc if isinstance(subject, Preset) else inspect.cleandoc(catalogue()[function].__doc__ or "")
    tricks = plan.tricks
    row: Row = {
        "name": subject.name,
        "doc": doc,
        "settings": _settings(plan),
        "needs": [
            f"{trick.name} needs {need.describe()}" if isinstance(subject, Preset) else need.describe()
            for trick in tricks
            for need in trick.needs
        ],
        "unmet": plan.unmet(machine),
        "checks": [],
        "figures": figures(doc),
    }
    if isinstance(subject, Preset):
        return row | {"tricks": [trick.name for trick in tricks], "notes": list(plan.notes)}
    about = {key: getattr(subject, key) for key in ("family", "saves", "costs", "numerics")}
    about["arguments"] = f"{function}{_arguments(catalogue()[function])}"
    about |= {"heads": list(subject.heads), "remarks": dict(subject.remarks)}
    return row | about | {"within": subject.within._asdict() if subject.within else None}


def figures(doc: str) -> list[str]:
    """Return the published figures that a docstring states: its paragraph that begins with `Published:`."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]
    return [text.removeprefix("Published: ") for text in paragraphs if text.startswith("Published: ")]


def plan_report(plan: Plan, machine: Machine, processes: int) -> Row:
    """Return a plan on `processes` as data, with what `machine` lacks for it and what would be faster there."""
    settled = fit_every_door(at_processes(plan, processes))
    return {
        "settings": _settings(settled),
        "unmet": plan.unmet(machine),
        "effective_batch": effective_batch(plan, processes),
        "replaced": list(settled.replaced),
        "notes": [*settled.notes, *_remarks(plan)],
        "advice": plan.advice(machine),
    }


def machine_row(machine: Machine) -> Row:
    """Return a machine as data that JSON can hold."""
    capability = ".".join(map(str, machine.capability)) if machine.capability > (0, 0) else ""
    return asdict(machine) | {"capability": capability}


def _remarks(plan: Plan) -> list[str]:
    """Return what the plan's tricks say about what your script has to do; SFTConfig's are said where it is built."""
    said = [text for trick in plan.tricks for target, text in trick.remarks.items() if target != "sft"]
    return list(dict.fromkeys(said))


def _settings(plan: Plan) -> list[Row]:
    return [setting._asdict() for setting in plan.settings]


def _arguments(make: Callable[..., Trick]) -> str:
    """Return the arguments and defaults of a trick's function, as one would write them."""
    parts = [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(make).parameters.items()
    ]
    return f"({', '.join(parts)})"


def _tricks() -> list[Row]:
    return [
        {key: getattr(trick, key) for key in ("name", "family", "saves", "costs", "numerics")} for trick in defaults()
    ]


def _presets() -> list[Row]:
    return [
        {
            "name": preset.name,
            "doc": preset.doc,
            "tricks": [trick.name for trick in preset.tricks],
            "where_it_pays": [trick.name for trick, _ in preset.where],
        }
        for preset in PRESETS.values()
    ]


KINDS: Mapping[str, Callable[[], list[Row]]] = {
    "tricks": _tricks,
    "presets": _presets,
    "recipes": lambda: [{"name": name, "doc": doc} for name, doc in docs("recipes").items()],
    "configs": lambda: [{"name": name, "doc": doc} for name, doc in docs("configs").items()],
    "checks": lambda: _check_rows(),
    "gpus": lambda: [_card(machine) for machine in cards()],
}
"""Every kind of list under its name on the command line."""


def codes() -> dict[str, Row]:
    """Return every code that a finding may have, with its page. The checks load only when somebody asks."""
    from hf_efficient.checks.check import checks
    from hf_efficient.doctor.pages import PAGES

    found = {
        code: {"doc": check.doc, "family": check.family, "holds_for": check.releases, "known_by": check.seen}
        for code, check in checks().items()
    }
    for code, doc in PAGES.items():
        family = "probe" if code.startswith("probe-") else "reading"
        found[code] = {"doc": doc, "family": family, "holds_for": "every release", "known_by": ""}
    return found


def _check_rows() -> list[Row]:
    return [
        {"name": code, "family": row["family"], "finds": row["doc"].splitlines()[0], "holds_for": row["holds_for"]}
        for code, row in codes().items()
    ]


def _check_page(code: str) -> Row:
    """Return a check as a page: what pages of tricks have besides is empty."""
    return {"name": code} | codes()[code] | {"settings": [], "needs": [], "checks": [code], "figures": []}


def _card(machine: Machine) -> Row:
    row = machine_row(machine)
    keys = ("capability", "memory_gib", "bandwidth_gb_s", "link_gb_s", "host_link_gb_s", "peak_tflops", "source")
    return {"name": machine.gpu} | {key: row[key] for key in keys} | {"memory_gib": round(machine.memory_gib, 2)}

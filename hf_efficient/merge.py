"""Names of tricks and presets become a plan: who is replaced, who conflicts, what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hf_efficient.machine import Machine, this_machine
from hf_efficient.plan import Conflict, Plan
from hf_efficient.presets import PRESETS, Preset
from hf_efficient.spelling import read
from hf_efficient.trick import Trick
from hf_efficient.tricks import catalogue
from hf_efficient.wording import unknown


class Chosen(NamedTuple):
    """A trick and who chose it: the name of a preset, or an empty string for you."""

    trick: Trick
    preset: str

    @property
    def label(self) -> str:
        """Say who chose what, for a sentence."""
        return f"{self.preset}'s {self.trick.name}" if self.preset else self.trick.name


def make_plan(*names: Trick | Preset | str, without: Iterable[str] = (), machine: Machine | None = None) -> Plan:
    """Merge tricks, presets and their spellings into one plan; `without` takes tricks out by name.

    A trick that you name replaces a preset's trick of the same family. `machine` decides about the few tricks that a
    preset takes only where they pay (`cpu` and bf16); without it that is the machine at hand.

    Raises Conflict for two tricks of one family that you name, two presets that disagree where you do not decide, and
    two tricks that want different values for one key; ValueError for a name that nothing has.
    """
    machine = machine or this_machine()
    parsed = [parse(name) if isinstance(name, str) else name for name in names]
    presets = [item for item in parsed if isinstance(item, Preset)]
    choices = [Chosen(trick, preset.name) for preset in presets for trick in preset.on(machine)]
    choices += [Chosen(item, "") for item in parsed if isinstance(item, Trick)]
    choices, left_out = _take_out(choices, tuple([without] if isinstance(without, str) else without))
    yours = _by_family(choice for choice in choices if not choice.preset)
    theirs = [choice for choice in choices if choice.preset]
    replaced = [
        f"{yours[family].label} replaces {old.label}."
        for old in theirs
        if (family := old.trick.family) in yours and yours[family].trick != old.trick
    ]
    plan = Plan(replaced=(*replaced, *left_out))
    for trick, _ in (_by_family(old for old in theirs if old.trick.family not in yours) | yours).values():
        plan = plan.add(trick)
    for preset in presets:
        plan = plan.assume("trainer", preset.trainer, by=preset.name).note(*preset.notes(machine, plan.tricks))
    return plan


def preset(name: str) -> Plan:
    """Return the plan of one preset. Raises ValueError for a name that no preset has."""
    if name in catalogue():
        raise ValueError(f"{name} is a trick and no preset: write make_plan({name!r}).")
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return make_plan(name)


def parse(text: str) -> Trick | Preset:
    """Return the trick or preset that is spelled `text`. Raises ValueError with the nearest name for another."""
    name, args, keywords = read(text)
    tricks = catalogue()
    if name in PRESETS:
        if args or keywords:
            raise ValueError(f"{text}: {name} is a preset and takes no arguments; name the trick beside it instead.")
        return PRESETS[name]
    if name not in tricks:
        raise unknown("trick or preset", name, [*tricks, *PRESETS])
    return tricks[name](*args, **keywords)


def _by_family(choices: Iterable[Chosen]) -> dict[str, Chosen]:
    families: dict[str, Chosen] = {}
    for new in choices:
        old = families.setdefault(new.trick.family, new)
        if old.trick != new.trick:
            raise Conflict(
                f"{old.label} and {new.label} are both of the family {new.trick.family}: keep one of the two."
            )
    return families


def _take_out(choices: list[Chosen], names: tuple[str, ...]) -> tuple[list[Chosen], list[str]]:
    """Return the choices without the named ones, by function name or by whole spelling, and a sentence for each."""
    sentences = []
    for name in names:
        wanted = parse(name)
        if isinstance(wanted, Preset):
            raise ValueError(f"--without {name}: {name} is a preset; name the tricks that you do not want.")
        out = [choice for choice in choices if _is_meant(choice.trick, name, wanted)]
        if not out:
            there = ", ".join(trick.name for trick, _ in choices) or "nothing"
            raise ValueError(f"--without {name}: the plan has no {name} to leave out; it has {there}.")
        choices = [choice for choice in choices if choice not in out]
        sentences += [f"{choice.label} is left out, as you ask." for choice in out]
    return choices, sentences


def _is_meant(trick: Trick, name: str, wanted: Trick) -> bool:
    return trick == wanted if "(" in name else read(trick.name)[0] == read(name)[0]

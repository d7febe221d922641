"""Tricks become settings, each with its author; a plan means nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hf_efficient.machine import Machine
from hf_efficient.trick import TARGETS, Trick


class Setting(NamedTuple):
    """One knob: `key` of `target` is `value`, because `by` says so. Nested keys are joined by dots."""

    target: str
    key: str
    value: Any
    by: str


class Conflict(ValueError):
    """Two authors want different things; the message names both and says what to keep."""


@dataclass(frozen=True)
class Plan:
    """Settings and where they came from. Build it with `make_plan`; every method returns a new plan.

    `replaced` and `notes` are sentences to print: what a choice of yours replaced or left out, what was computed.
    """

    tricks: tuple[Trick, ...] = ()
    settings: tuple[Setting, ...] = ()
    replaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, target: str) -> dict[str, Any]:
        """Return the settings of one target as the nested mapping that the target takes."""
        if target not in TARGETS:
            raise KeyError(f"{target} is no target; there are {', '.join(TARGETS)}.")
        return nest({setting.key: setting.value for setting in self.settings_of(target)})

    @property
    def engine(self) -> str:
        """Return accelerate's distributed type that the plan asks for: `NO`, `DEEPSPEED`, `FSDP`."""
        return str(self["launch"].get("distributed_type", "NO"))

    def author(self, target: str, key: str) -> str:
        """Return who set `key` or what lies below it; an empty string for a key that nobody set."""
        return next((s.by for s in self.settings if s.target == target and _is_or_below(s.key, key)), "")

    def settings_of(self, target: str) -> tuple[Setting, ...]:
        """Return the settings of one target, in the order in which they were made."""
        return tuple(setting for setting in self.settings if setting.target == target)

    def unmet(self, machine: Machine) -> list[str]:
        """Return a sentence for each need of the plan's tricks that `machine` does not meet."""
        lacks = [(trick.name, need.unmet_on(machine)) for trick in self.tricks for need in trick.needs]
        return [f"{name} needs {lack}" for name, lack in lacks if lack]

    def advice(self, machine: Machine) -> list[str]:
        """Return what would be faster on `machine`; nothing of it is imposed."""
        return [text for trick in self.tricks if trick.advise and (text := trick.advise(machine))]

    def override(self, target: str, values: Mapping[str, Any], *, by: str) -> Plan:
        """Return the plan with `values` in place of whatever it says about those keys."""
        new = (Setting(target, key, value, by) for key, value in values.items())
        return replace(self, settings=(*self.drop(target, values).settings, *new))

    def assume(self, target: str, values: Mapping[str, Any], *, by: str) -> Plan:
        """Return the plan with `values` for those keys about which it says nothing."""
        new = {key: value for key, value in values.items() if not self.author(target, key)}
        return replace(
            self, settings=(*self.settings, *(Setting(target, key, value, by) for key, value in new.items()))
        )

    def drop(self, target: str, keys: Iterable[str]) -> Plan:
        """Return the plan without what it says about `keys`."""
        keys = tuple(keys)
        kept = [s for s in self.settings if s.target != target or not any(_is_or_below(s.key, k) for k in keys)]
        return replace(self, settings=tuple(kept))

    def remove(self, trick: Trick) -> Plan:
        """Return the plan without a trick and what it set."""
        return replace(
            self,
            tricks=tuple(other for other in self.tricks if other.name != trick.name),
            settings=tuple(setting for setting in self.settings if setting.by != trick.name),
        )

    def add(self, trick: Trick, *, by: str = "") -> Plan:
        """Return the plan with one more trick, its settings authored by `by` or by the trick itself.

        Raises Conflict when a setting has another value already, unless one of the two tricks decides it.
        """
        settings = {(s.target, s.key): s for s in self.settings}
        notes = []
        for name in TARGETS:
            for key, value in flatten(getattr(trick, name)):
                new = Setting(name, key, value, by or trick.name)
                old = settings.setdefault((name, key), new)
                if old.value != value:
                    kept, other = self._decided(trick, old, new)
                    settings[name, key] = kept
                    notes.append(f"{kept.by} decides {key}: {kept.value!r}, not the {other.value!r} of {other.by}.")
        return replace(self, tricks=(*self.tricks, trick), settings=tuple(settings.values())).note(*notes)

    def _decided(self, trick: Trick, old: Setting, new: Setting) -> tuple[Setting, Setting]:
        """Return the setting that holds and the one that gives way. Raises Conflict where neither has the say."""
        place = f"{new.target}.{new.key}"
        theirs = any(place in other.decides for other in self.tricks if other.name == old.by)
        if (place in trick.decides) != theirs:
            return (old, new) if theirs else (new, old)
        raise Conflict(
            f"{old.by} sets {new.key}={old.value!r} for the {new.target}, {new.by} sets it to {new.value!r}: "
            "keep one of the two."
        )

    def note(self, *sentences: str) -> Plan:
        """Return the plan with more sentences to print."""
        return replace(self, notes=(*self.notes, *sentences))


def require_plan(plan: object) -> None:
    """Raise ValueError for what is no Plan, such as the name of a preset."""
    if not isinstance(plan, Plan):
        raise ValueError(f"A plan is wanted here, and {plan!r} is none: write make_plan({plan!r}) instead.")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping, their keys joined by dots; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`."""
    tree: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, leaf = dotted.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = list(value) if isinstance(value, list) else value  # a caller's own, to change as they like
    return tree


def _is_or_below(key: str, top: str) -> bool:
    return key == top or key.startswith(f"{top}.")

"""A trace of a few layers becomes the trace of all of them, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hf_efficient.memory.record import Event, Mark

BETWEEN = -1
Place = tuple[str, int]
"""A pass through a stack: phase and unit."""


class NotAlikeError(Exception):
    """Two layers that should behave alike do not, and a short trace cannot stand for a long one."""


class Segment(NamedTuple):
    """What happens while one unit of a stack computes, forward or backward; or what happens between (unit -1)."""

    phase: str
    stack: int
    unit: int
    events: list[Event]


def segments(events: Sequence[Event], marks: Sequence[Mark], periods: Sequence[int]) -> list[Segment]:
    """Cut a trace at its marks; neighbouring layers of one unit are one segment.

    `periods`: layers per unit, of each stack.
    """
    cut: list[Segment] = []
    ends = [mark.at for mark in marks[1:]] + [len(events)]
    for mark, end in zip(marks, ends, strict=True):
        unit = mark.layer // periods[mark.stack] if mark.layer != BETWEEN else BETWEEN
        last = cut[-1] if cut else None
        if last and unit != BETWEEN and (last.phase, last.stack, last.unit) == (mark.phase, mark.stack, unit):
            last.events.extend(events[mark.at : end])
        else:
            cut.append(Segment(mark.phase, mark.stack, unit, list(events[mark.at : end])))
    return cut


def extended(cut: Sequence[Segment], stack: int, more: int, *, after: int = 1) -> list[Segment]:
    """Return the trace with `more` units of one stack behind its unit `after`, which must do as the next one does.

    What a unit frees is its own, its neighbours', or one storage for all of them; what the units leave behind goes
    where that one's goes. Raises NotAlikeError where that is not so.
    """
    own = {(s.phase, s.unit): s for s in cut if s.stack == stack and s.unit != BETWEEN}
    if len(own) != sum(s.stack == stack and s.unit != BETWEEN for s in cut):
        raise NotAlikeError("a layer computes more than once")
    keys = {
        (place, number): event.key
        for place, segment in own.items()
        for number, event in enumerate(e for e in segment.events if e.size >= 0)
    }
    pattern = {
        phase: _pattern(segment, own.get((phase, after + 1)), keys)
        for (phase, unit), segment in own.items()
        if unit == after
    }
    return _Longer(stack, more, after=after, keys=keys, pattern=pattern).trace(cut)


Freed = tuple[str, int, int] | int
"""What an event frees: phase, how many units further on, and number there; or a key, the same for all units."""


def _pattern(one: Segment, other: Segment | None, keys: dict[tuple[Place, int], int]) -> list[Freed | None]:
    """Return what each event of a unit frees, None for one that allocates. The next must do the same."""
    if other is None or len(one.events) != len(other.events):
        raise NotAlikeError(f"two neighbouring layers differ in what they do {one.phase}")
    where = {key: (phase, unit, number) for ((phase, unit), number), key in keys.items()}
    found: list[Freed | None] = []
    for a, b in zip(one.events, other.events, strict=True):
        if (a.size, a.flops) != (b.size, b.flops):
            raise NotAlikeError(f"{a.phase}: {a.op} of {a.shape} in one layer, {b.op} of {b.shape} in the next")
        if a.size >= 0:
            found.append(None)
        elif a.key == b.key:
            found.append(a.key)
        else:
            found.append(_relative(where.get(a.key), where.get(b.key), one.unit))
    return found


def _relative(a: tuple[str, int, int] | None, b: tuple[str, int, int] | None, unit: int) -> Freed:
    """Return what a unit frees as seen from it. The first and the last unit may number their storages otherwise."""
    if a is None or b is None or (a[0], a[1] + 1) != b[:2]:
        raise NotAlikeError("two neighbouring layers free what is not each one's own")
    further = a[1] - unit
    if further == 0 and a[2] != b[2]:
        raise NotAlikeError("two neighbouring layers free what is not each one's own")
    return a[0], further, b[2] if further < 0 else a[2]


class _Longer:
    """The longer trace in the making."""

    def __init__(
        self,
        stack: int,
        more: int,
        *,
        after: int,
        keys: dict[tuple[Place, int], int],
        pattern: dict[str, list[Freed | None]],
    ) -> None:
        self.stack, self.more, self.after, self.pattern = stack, more, after, pattern
        self.keys = {((phase, self._long(unit)), number): key for ((phase, unit), number), key in keys.items()}
        self.short = dict(keys)
        self.owner = {key: (*place, number) for (place, number), key in keys.items()}
        self.made: dict[int, range] = {}
        """Key of a storage of the unit that is copied -> those of the copies."""
        self.first: dict[tuple[str, int], int] = {}
        """Phase and number of a storage -> its key in the first copy; those of the others follow."""

    def _long(self, unit: int) -> int:
        return unit + self.more if unit > self.after else unit

    def trace(self, cut: Sequence[Segment]) -> list[Segment]:
        """Return the longer trace."""
        self._name_copies(max(event.key for segment in cut for event in segment.events) + 1)
        out: list[Segment] = []
        begun: set[str] = set()
        for segment in cut:
            if segment.stack != self.stack or segment.unit not in (self.after, self.after + 1):
                out.append(self._beside(segment) if segment.stack == self.stack else segment)
                continue
            copies = [self._copy(segment, unit) for unit in range(self.after + 1, self.after + 1 + self.more)]
            here = self._copy(segment, self._long(segment.unit))
            if segment.phase in begun:  # the copies stand before the second of the two that come by
                out += copies if segment.unit > self.after else copies[::-1]
            begun.add(segment.phase)
            out.append(here)
        return self._let_go(out)

    def _name_copies(self, fresh: int) -> None:
        for ((phase, unit), number), key in self.short.items():
            if unit == self.after:
                self.made[key] = range(fresh, fresh + self.more)
                self.first[phase, number] = fresh
                fresh += self.more

    def _key(self, phase: str, unit: int, number: int) -> int:
        copy = unit - self.after - 1
        if 0 <= copy < self.more:
            return self.first[phase, number] + copy
        return self.keys[(phase, unit), number]

    def _copy(self, segment: Segment, unit: int) -> Segment:
        events, number = [], 0
        for event, freed in zip(segment.events, self.pattern[segment.phase], strict=True):
            if freed is None:
                key = self._key(segment.phase, unit, number)
                number += 1
            elif isinstance(freed, int) or self._at_an_end(unit, freed[1]):
                key = event.key
            else:
                key = self._key(freed[0], unit + freed[1], freed[2])
            events.append(event._replace(key=key))
        return Segment(segment.phase, self.stack, unit, events)

    def _beside(self, segment: Segment) -> Segment:
        """Return a segment that is not copied. What it frees of the like units' is that of its neighbours now."""
        unit = self._long(segment.unit)
        near = {freed[:2] for freed in self.pattern.get(segment.phase, ()) if isinstance(freed, tuple)}
        events = []
        for event in segment.events:
            phase, owner, number = self.owner.get(event.key, ("", BETWEEN, 0))
            further = owner - segment.unit
            moved = event.size < 0 and owner in (self.after, self.after + 1) and (phase, further) in near
            if moved and segment.unit != BETWEEN and further:
                event = event._replace(key=self._key(phase, unit + further, number))
            events.append(event)
        return segment._replace(unit=unit, events=events)

    def _at_an_end(self, unit: int, further: int) -> bool:
        """Say whether what the first or the last of the like units frees lies beyond them, as in the short trace."""
        return (unit == self.after and further < 0) or (unit == self._long(self.after + 1) and further > 0)

    def _let_go(self, out: list[Segment]) -> list[Segment]:
        """Free what the copies leave behind where that of their model goes."""
        freed = {event.key for segment in out for event in segment.events if event.size < 0}
        left = {key: [each for each in copies if each not in freed] for key, copies in self.made.items()}
        longer = []
        for segment in out:
            events = []
            for event in segment.events:
                events.append(event)
                if event.size < 0 and left.get(event.key):
                    events += [event._replace(key=each) for each in left[event.key]]
            longer.append(segment._replace(events=events))
        return longer

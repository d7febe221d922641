"""Old names in a Python script: edits that leave every other character as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import libcst as cst
from packaging.version import Version

from hf_efficient import renames
from hf_efficient.doctor.fix.calls import Item, Listing, Reader, Target, given
from hf_efficient.doctor.fix.steps import KEEP, Step, holds, leave, step
from hf_efficient.doctor.fix.text import Edit, line_number, taken_out
from hf_efficient.renames import Rename

TABLES: Mapping[str, Mapping[str, Rename]] = {
    "arguments": renames.FIELDS,
    "sft": renames.FIELDS | renames.SFT,
    "trainer": renames.TRAINERS,
    "loading": renames.LOADING,
    "accelerator": renames.ACCELERATOR,
}
Versions = Callable[[str], Version | None]


def python_edits(text: str, versions: Versions, quiet: frozenset[int]) -> tuple[list[Edit], list[tuple[int, str]]]:
    """Return the edits of a script, and what is left with its line and reason; `quiet` lines are not touched.

    `versions` gives the release of a package that the run uses, or None. Raises ValueError for no Python.
    """
    if not any(name in text for table in TABLES.values() for name in table) and "optim" not in text:
        return [], []
    try:
        reader = Reader(text)
        targets = reader.targets()
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise ValueError(f"libcst cannot read it ({type(error).__name__})") from None
    work = _Work(text, versions, quiet)
    for target in targets:
        work.target(target, targets)
    return work.edits(), sorted(set(work.left))


class _Work:
    """The edits of one script as they are found."""

    def __init__(self, text: str, versions: Versions, quiet: frozenset[int]) -> None:
        self.text = text
        self.versions = versions
        self.quiet = quiet
        self.left: list[tuple[int, str]] = []
        self._edits: list[Edit] = []
        self._gone: dict[int, tuple[Listing, set[int]]] = {}
        self._inside: dict[int, tuple[Item, str, list[str]]] = {}
        self._done: set[int] = set()

    def edits(self) -> list[Edit]:
        """Return all edits."""
        gone = [one for listing, which in self._gone.values() for one in self._removed(listing, which)]
        moved = [one for holder, new, parts in self._inside.values() for one in self._added(holder, new, parts)]
        return [*self._edits, *gone, *moved]

    def target(self, target: Target, targets: list[Target]) -> None:
        """Work through the names that a call is given, by its own arguments and by dicts unpacked into it."""
        table = TABLES[target.kind]
        for at, name, keys in target.notes:
            for old in sorted(keys & table.keys()):
                self._leave(at, f"{old} is left in {name}, which other lines use as well")
        for listing in target.listings:
            if id(listing) in self._done:
                continue
            self._done.add(id(listing))
            sharing = [other for other in targets if any(one is listing for one in other.listings)]
            for index, item in enumerate(listing.items):
                if any(item.name in other.own for other in sharing) or self._line(item) in self.quiet:
                    continue
                self._item(listing, index, table, [one for other in sharing for one in other.listings])

    def _item(self, listing: Listing, index: int, table: Mapping[str, Rename], listings: list[Listing]) -> None:
        item = listing.items[index]
        rename = table.get(item.name)
        if item.name == "optim" and isinstance(item.literal, str):
            other = renames.OPTIMIZERS.get(item.literal)
            if other and other.new and holds(other, self.versions("transformers")):
                self._edits.append(Edit(*item.value, self._source(other.new)))
        if rename is None or not holds(rename, self.versions(rename.since.partition(" ")[0])):
            return
        found = self._careful(item, step(rename, item.literal, given(listings)))
        if found.do == "leave":
            self._leave(item.span.start, f"{item.name} is left: {found.why}")
        elif found.do == "remove":
            self._gone.setdefault(id(listing), (listing, set()))[1].add(index)
        elif found.do == "rename":
            self._rename(item, listing, found)
        else:
            self._into(listing, index, found, listings)

    def _careful(self, item: Item, found: Step) -> Step:
        """Return the step, or why it is left: a value that does something may not be taken out."""
        text = self.text[slice(*item.value)]
        if found.do == "remove" and (":=" in text or "await " in text):
            return leave("its value does something besides, so take it out yourself")
        return found

    def _rename(self, item: Item, listing: Listing, found: Step) -> None:
        self._edits.append(Edit(*item.key, self._name(found.new, item, listing)))
        if found.value is not KEEP:
            self._edits.append(Edit(*item.value, self._source(found.value)))

    def _into(self, listing: Listing, index: int, found: Step, listings: list[Listing]) -> None:
        """Move a value into the mapping that another name is given, or make that mapping in its place."""
        item = listing.items[index]
        value = self.text[slice(*item.value)] if found.value is KEEP else self._source(found.value)
        holders = [one for each in listings for one in each.items if one.name == found.new]
        holder = holders[0] if holders else None
        here = {id(one) for each in listings for one in each.items}
        begun = next((one for key, one in self._inside.items() if key in here and one[0] is holder), None)
        begun = begun or next((one for key, one in self._inside.items() if key in here and one[1] == found.new), None)
        if holder is None and begun is None:
            self._edits.append(Edit(*item.key, self._name(found.new, item, listing)))
            self._inside[id(item)] = (item, found.new, [f"{self._source(found.key)}: {value}"])
            return
        if holder is not None and (holder.entries is None or len(holders) > 1 or "\n" in value):
            self._leave(item.span.start, f"{item.name} is left: {found.new} is no mapping that can be added to safely")
            return
        key = found.key if holder is not None and holder.entries and not holder.entries.quoted else ""
        part = f"{key}={value}" if key else f"{self._source(found.key)}: {value}"
        place = begun if begun is not None else self._inside.setdefault(id(holder), (holder or item, "", []))
        place[2].append(part)
        self._gone.setdefault(id(listing), (listing, set()))[1].add(index)

    def _added(self, holder: Item, new: str, parts: list[str]) -> Iterator[Edit]:
        inside = ", ".join(parts)
        if new:
            yield Edit(*holder.value, f"{{{inside}}}")
        elif holder.entries is not None:
            items = holder.entries.items
            if items:
                yield Edit(items[-1].span.end, items[-1].span.end, f", {inside}")
            else:
                yield Edit(holder.entries.close, holder.entries.close, inside)

    def _removed(self, listing: Listing, which: set[int]) -> list[Edit]:
        return taken_out(self.text, [item.span for item in listing.items], which, listing.close)

    def _name(self, new: str, item: Item, listing: Listing) -> str:
        quote = self.text[item.key.start] if listing.quoted else ""
        return f"{quote}{new}{quote}"

    def _source(self, value: Any) -> str:
        """Return a literal as this script would write it: with the quotes that it uses most."""
        single = self.text.count("'") > self.text.count('"')
        return repr(value) if single or not isinstance(value, str | list) else _double(value)

    def _line(self, item: Item) -> int:
        return line_number(self.text, item.span.start)

    def _leave(self, at: int, why: str) -> None:
        self.left.append((line_number(self.text, at), why))


def _double(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else f"[{', '.join(map(_double, value))}]"

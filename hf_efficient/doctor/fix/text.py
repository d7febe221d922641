"""Edits of a text by position: what is not edited stays as it is, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NEWLINE = re.compile(r"\r\n?|\n")
COMMENT = re.compile(r"#[^\r\n]*")
REST = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r|\n|\Z)")


class Edit(NamedTuple):
    """What stands between two positions is replaced."""

    start: int
    end: int
    new: str = ""


class Span(NamedTuple):
    """From the first character to behind the last one."""

    start: int
    end: int


class UnsafeError(ValueError):
    """A change that this kind of text cannot take safely; the sentence says why."""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits. Raises UnsafeError where two of them want the same place."""
    parts: list[str] = []
    at = 0
    for edit in sorted(set(edits)):
        if edit.start < at:
            raise UnsafeError("two changes meet in one place")
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*parts, text[at:]])


def newline_of(text: str) -> str:
    """Return how the lines of a text end."""
    found = NEWLINE.search(text)
    return found.group() if found else "\n"


def line_number(text: str, at: int) -> int:
    """Return the line, from 1, that a position is in."""
    return len(NEWLINE.findall(text, 0, at)) + 1


def line_start(text: str, at: int) -> int:
    """Return where the line of a position begins."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def line_end(text: str, at: int) -> int:
    """Return where the next line begins."""
    found = NEWLINE.search(text, at)
    return found.end() if found else len(text)


def alone(text: str, span: Span) -> bool:
    """Does nothing but a comment share the lines of a span?"""
    before = text[line_start(text, span.start) : span.start]
    return not before.strip() and REST.match(text, span.end) is not None


def comma_after(text: str, at: int, limit: int) -> int:
    """Return where the comma behind an item is, comments aside; -1 where there is none before the limit."""
    while at < limit:
        if text[at] == ",":
            return at
        found = COMMENT.match(text, at)
        at = found.end() if found else at + 1
    return -1


def taken_out(text: str, items: Sequence[Span], gone: set[int], close: int) -> list[Edit]:
    """Return the edits that take items out of a list with commas; `close` is where its bracket closes.

    An item on lines of its own goes with them; a comment on a line of its own stays. The list ends in a comma
    afterwards if it did before.
    """
    starts = [*(item.start for item in items), close]
    commas = [comma_after(text, item.end, starts[i + 1]) for i, item in enumerate(items)]
    ends = [comma + 1 if comma >= 0 else item.end for comma, item in zip(commas, items, strict=True)]
    last = max((i for i in range(len(items)) if i not in gone), default=-1)
    edits: list[Edit] = []
    for i in sorted(gone):
        before = ends[i - 1] if i else items[i].start
        if alone(text, Span(items[i].start, ends[i])):
            edits.append(Edit(line_start(text, items[i].start), line_end(text, ends[i])))
        elif i < last:
            edits.append(_inner(text, Span(items[i].start, ends[i]), before, starts[i + 1]))
        else:
            blank = not text[before : items[i].start].strip()
            edits.append(Edit(before if blank else items[i].start, ends[i]))
    if 0 <= last < len(items) - 1 and commas[-1] < 0:
        edits.append(Edit(commas[last], commas[last] + 1))
    return _joined(edits)


def _inner(text: str, span: Span, before: int, following: int) -> Edit:
    """Return the edit for an item that shares its line, with another one behind it."""
    gap = text[span.end : following]
    if not NEWLINE.search(gap):
        return Edit(span.start, following)
    shares = before < span.start and not NEWLINE.search(text[before : span.start])
    if shares and not text[before : span.start].strip():
        return Edit(before, span.end)
    return Edit(span.start, following if not gap.strip() else span.end)


def _joined(edits: Iterable[Edit]) -> list[Edit]:
    """Return deletions with those that overlap made one."""
    joined: list[Edit] = []
    for edit in sorted(edits):
        if joined and edit.start < joined[-1].end:
            joined[-1] = Edit(joined[-1].start, max(edit.end, joined[-1].end))
        else:
            joined.append(edit)
    return joined

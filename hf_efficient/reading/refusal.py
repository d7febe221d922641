"""A file that cannot be read, or turned out to be something else: one finding, and the others are still checked."""

from __future__ import annotations

from hf_efficient.finding import Finding, Place, error, info
from hf_efficient.reading.parts import Part

UNREADABLE = "unreadable"
"""The code of a finding that says that a file was not read."""
EXPECTED = (
    "a Python script, a shell script, an accelerate YAML, a DeepSpeed JSON, arguments as YAML or JSON, "
    "a setup document, a config.json or a checkpoint folder"
)


class Unreadable(ValueError):  # noqa: N818 - it is what the file is
    """What stops reading in the middle; it carries the finding that tells of it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding.coded(UNREADABLE)

    def part(self, file: str) -> Part:
        """Return the file as one that could not be read."""
        return Part(kind="unreadable", file=file, findings=(self.finding,))


def refuse(file: str, what: str, *, why: str, fix: str, line: int = 0) -> Unreadable:
    """Return what to raise for a file that cannot be read. `what` goes on after the file's name."""
    return Unreadable(error(f"{file} {what}", why=f"{why} Nothing in it was checked.", fix=fix, at=Place(file, line)))


def too_deep(file: str) -> Unreadable:
    """Return what to raise for nesting that no configuration needs."""
    return refuse(
        file,
        "is nested too deeply to be read",
        why="Readers of such files give up on it as well (a recursion limit).",
        fix="Write it flatter; no file of the stack has more than ten levels.",
    )


def stranger(file: str, what: str = "was not recognised", *, fix: str = "") -> Unreadable:
    """Return what to raise for a file that can be read and is none of those that the doctor knows."""
    return Unreadable(
        info(
            f"{file} {what}",
            why=f"The doctor reads {EXPECTED}, and knows them by what is in them.",
            fix=fix or "Leave it out, or check the spelling of its keys if it should be one of these.",
            at=Place(file),
        )
    )

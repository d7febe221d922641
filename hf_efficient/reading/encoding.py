"""The text of a file, whatever it was encoded in, and what to say where others will not be able to read it."""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
import tokenize
from pathlib import Path

from hf_efficient.finding import Finding, Place, warning
from hf_efficient.reading.refusal import refuse, stranger

LIMIT = 5 * 2**20
"""Bytes; a script or configuration is a thousandth of it, and data has no place here."""
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"),
)  # fmt: skip
MARKERS = ("__init__.py", "conftest.py", "py.typed", ".gitkeep", ".keep")
"""Files that are often empty, because all that counts is that they are there."""
CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Bytes that no text has."""


def text_of(path: Path, file: str) -> tuple[str, tuple[Finding, ...]]:
    """Return a file's text and what its encoding will cost. Raises Unreadable."""
    data = _bytes(path, file)
    if not data.strip():
        if path.name in MARKERS:
            raise stranger(file, "is empty", fix="Nothing is needed.")
        raise refuse(file, "is empty", why="There is nothing to read.", fix="Write it, or leave it out.")
    text, encoding = _decoded(data, file, python=path.suffix == ".py")
    hurts = encoding not in ("utf-8", "utf-8-sig") or (encoding == "utf-8-sig" and path.suffix in (".json", ".sh"))
    told: tuple[Finding, ...] = (_told(file, encoding),) if hurts else ()
    if path.suffix in (".sh", ".bash") and "\r\n" in text:
        told += (_windows(file),)
    return text.replace("\r\n", "\n").replace("\r", "\n"), told


def _bytes(path: Path, file: str) -> bytes:
    try:
        if path.is_symlink() and not path.exists():
            raise refuse(
                file,
                f"is a symbolic link to {os.readlink(path)}, which is not there",
                why="There is no file behind it.",
                fix="Point the link at the file, or name the file itself.",
            )
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise refuse(
                file, "is not a regular file", why="It may never end.", fix="Write what it gives into a file first."
            )
        if found.st_size > LIMIT:
            raise refuse(
                file,
                f"is too large: {found.st_size / 2**20:.1f} MiB, and the doctor reads at most {LIMIT // 2**20} MiB",
                why="Scripts and configurations are far smaller, so this is probably data or weights.",
                fix="Name the script or the configuration instead.",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if hasattr(error, "finding"):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(
            file, f"could not be opened: {reason}", why="The system refused it.", fix="Check its name and permissions."
        ) from None


def _decoded(data: bytes, file: str, *, python: bool) -> tuple[str, str]:
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), "")
    if python and not encoding:
        encoding = _declared(data)
    for name in (encoding, "utf-8") if encoding else ("utf-8",):
        try:
            text = data.decode(name)
        except (UnicodeError, LookupError, ValueError):
            continue
        if "\0" not in text:
            return text, "utf-8" if python and name == _declared(data) else name
    if CONTROL.search(data) or encoding.startswith("utf-1") or encoding.startswith("utf-3"):
        raise refuse(
            file,
            "is not text: it holds bytes that no encoding of text explains",
            why="It is binary (weights, an archive, a pickle), or was damaged.",
            fix="Name the script or configuration; of a checkpoint name its folder.",
        )
    return data.decode("latin-1"), "latin-1"


def _declared(data: bytes) -> str:
    """Return the encoding that a Python file declares in its first two lines."""
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except (SyntaxError, ValueError):
        return ""


def _windows(file: str) -> Finding:
    return warning(
        f"{file} has Windows line ends",
        why="bash takes the carriage return as part of each line's last word, so values and continued lines break.",
        fix="Convert it (`sed -i 's/\\r$//' FILE`).",
        at=Place(file),
    ).coded("windows-line-ends")


def _told(file: str, encoding: str) -> Finding:
    said = {"utf-8-sig": "begins with a byte order mark", "latin-1": "is not UTF-8 (it was read as Latin-1)"}
    return warning(
        f"{file} {said.get(encoding, f'is encoded in {encoding.upper()}')}",
        why="Python, accelerate, transformers and DeepSpeed open it as UTF-8 and stop, or read other characters.",
        fix="Save it as UTF-8 without a byte order mark.",
        at=Place(file),
    ).coded("other-encoding")

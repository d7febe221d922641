"""A file as text that can be written back byte for byte: its encoding, its mark, its line ends."""

from __future__ import annotations

import codecs
import io
import os
import tokenize
from dataclasses import dataclass
from pathlib import Path

LIMIT = 2**20
"""Bytes; no script or configuration that a person maintains is larger."""


@dataclass(frozen=True)
class Source:
    """One named file."""

    path: Path
    file: str
    """Its name as the user wrote it."""
    text: str
    encoding: str
    mark: bytes = b""

    def data(self, text: str) -> bytes:
        """Return the bytes of the file with another text in it."""
        return self.mark + text.encode(self.encoding)


def source_of(path: Path) -> Source | None:
    """Return a file's text, or None where it is a folder, too large, or no text that can be written back as it was."""
    try:
        if not path.is_file() or path.stat().st_size > LIMIT:
            return None
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    encoding = _declared(data) if path.suffix == ".py" else "utf-8"
    try:
        source = Source(path, str(path), data[len(mark) :].decode(encoding), encoding, mark)
    except (UnicodeError, LookupError):
        return None
    return source if "\0" not in source.text and source.data(source.text) == data else None


def require_writable(source: Source) -> None:
    """Raise ValueError in one sentence where a file is read-only, its folder takes no new file, or it has changed."""
    real = source.path.resolve()
    if not real.stat().st_mode & 0o222 or not os.access(real, os.W_OK):
        raise ValueError(
            f"{source.file} is read-only, so nothing was written: make it writable (chmod u+w) or leave it out."
        )
    if not os.access(real.parent, os.W_OK):
        raise ValueError(f"{source.file} lies in a folder that cannot be written to, so nothing was written.")
    if real.read_bytes() != source.data(source.text):
        raise ValueError(f"{source.file} was changed while it was read, so nothing was written: run it again.")


def _declared(data: bytes) -> str:
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except (SyntaxError, ValueError):
        return "utf-8"
    return "utf-8" if encoding == "utf-8-sig" else encoding

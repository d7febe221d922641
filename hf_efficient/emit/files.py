"""Files that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write `content`, text as UTF-8, to `path` so that a reader sees the old file or the new one, never a part.

    Raises ValueError in one sentence when the folder is missing or cannot be written to, or `path` is a folder.
    """
    data = content.encode() if isinstance(content, str) else content
    path = path.resolve()  # a link stays, and its file is written
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder; name a file in it")
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or a device cannot be exchanged for a file
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {_reason(error)}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode(path))  # mkstemp's 0600 is for secrets
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise ValueError(f"Cannot write {path}: {_reason(error)}.") from None


def require_writable_folder(folder: str | Path) -> None:
    """Make the folder if need be and try a file in it, so that a run does not fail at its end.

    Raises ValueError in one sentence when it cannot be written to.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"Cannot write to the folder {path}: {_reason(error)}. Name another one.") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _mode(path: Path) -> int:
    """Return the permissions of a file that is there, else those of a new one."""
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

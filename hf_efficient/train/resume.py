"""The checkpoint that a run goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import TrainingArguments


def checkpoint(args: TrainingArguments) -> str | None:
    """Return the folder that `resume_from_checkpoint` names, the newest of the output folder for `true`, or None.

    Raises ValueError when there is no checkpoint of Trainer's.
    """
    from transformers.trainer_utils import get_last_checkpoint

    asked = str(args.resume_from_checkpoint or "")
    if asked.lower() in ("", "false", "none"):
        return None
    if asked.lower() == "true":
        found = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
        if not found:
            raise ValueError(f"There is no checkpoint to resume from in {args.output_dir}: leave the flag out.")
        return str(found)
    if not (Path(asked) / "trainer_state.json").is_file():
        raise ValueError(f"{asked} is no checkpoint of Trainer's: it has no trainer_state.json.")
    return asked

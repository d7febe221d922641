"""What a probe answers, and which checks are about the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hf_efficient.finding import Finding

MOST = 5
"""Names in a sentence; the rest is counted."""


class NotProbedError(ValueError):
    """Why something cannot be probed, as one clause for the user."""


class Answer(NamedTuple):
    """A finding of a probe, or none where nothing need be told.

    `fault` says whether the thing that `topic` names is wrong; None: that is not judged.
    """

    finding: Finding | None
    topic: str = ""
    fault: bool | None = None


class Topic(NamedTuple):
    """What a probe looks at, in words, and the codes of the checks whose findings it proves or refutes."""

    about: str
    codes: str = r"(?!)"


TOPICS: dict[str, Topic] = {
    "model": Topic("the model"),
    "loss": Topic("whether accumulation scales the loss", r"accumulated-loss-(not-divided|divided-twice)"),
    "support": Topic("what the model class supports", "checkpointing-not-supported"),
    "dtypes": Topic(
        "the dtypes of the trainable parameters",
        "half-precision-parameters-under-grad-scaler|bf16-weights-without-fp32-masters",
    ),
    "gradients": Topic("which trainable parameters get a gradient", "reentrant-checkpoint-of-frozen-inputs"),
    "checkpointing": Topic("whether activation checkpointing recomputes anything", "checkpointing-in-eval-mode"),
    "shards": Topic("how rows are divided among the workers", "fewer-shards-than-workers"),
}


def some(names: Iterable[str]) -> str:
    """Return at most five names, then how many there are besides."""
    every = list(names)
    rest = f" and {len(every) - MOST} more" if len(every) > MOST else ""
    return ", ".join(every[:MOST]) + rest

"""How long the updates of one `trainer.train()` took, evaluations and saves left out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class RunClock(TrainerCallback):  # type: ignore[misc]
    """Measure a run from its first update, the wait for data included; works for resumed runs too.

    `seconds` is the time of the updates, `epochs` how much of the data they saw, `first_loss` the evaluation loss
    before the first of them, where `eval_on_start` made one.
    """

    def __init__(self) -> None:
        self.seconds, self.epochs, self.first_loss = 0.0, 0.0, float("nan")
        self._since, self._epoch = 0.0, 0.0

    def tokens_per_second(self, tokens: int) -> float:
        """Return the speed over data of `tokens` in all."""
        return self.epochs * tokens / self.seconds if self.seconds else 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start from where the run starts, which is not 0 when it is resumed."""
        self._since, self._epoch = time.perf_counter(), state.epoch or 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the update that has just ended, and the wait for its data."""
        now = time.perf_counter()
        self.seconds, self._since = self.seconds + now - self._since, now
        self.epochs = (state.epoch or 0.0) - self._epoch

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: Any,
    ) -> None:
        """Leave the evaluation out; keep the loss of the first."""
        self._since = time.perf_counter()
        if not self.seconds:
            self.first_loss = metrics.get("eval_loss", self.first_loss)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the save out."""
        self._since = time.perf_counter()

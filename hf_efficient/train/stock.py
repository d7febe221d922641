"""What the stock Trainer does with a loss, and the loss itself as the probe wants it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_efficient.train.batches import copied, try_batches
from hf_efficient.train.items import Batch, Counter, counters
from hf_efficient.train.notes import notes_kept
from hf_efficient.train.probe import Agree, LossKind, TriedLoss, probe
from hf_efficient.train.undisturbed import in_training, undisturbed

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn
    from transformers import Trainer


class Stock(NamedTuple):
    """The stock Trainer's scale: whether it is exact, the factor of loss and gradient, and where that comes from."""

    exact: bool
    factor: float
    of: str
    loss_scale: float


def try_trainer(trainer: Trainer, batches: Sequence[Batch]) -> tuple[LossKind, Stock]:
    """Return what the trainer's loss is, and what the stock Trainer does with it; leaves the trainer as it was."""
    with notes_kept(trainer), in_training(trainer.model):
        batches = [trainer._prepare_inputs(batch) for batch in batches]
        with unscaled(trainer):  # and no other process is waited for: it may have batches of another kind
            sees_items = trainer._get_num_items_in_batch(batches[:1], trainer.args.device) is not None
        scale = _loss_scale(trainer, batches, sees_items=sees_items)
        average = trainer.args.average_tokens_across_devices
        with unscaled(trainer):
            subject = TriedLoss(
                loss_of=_loss_of(trainer),
                model=trainer.accelerator.unwrap_model(trainer.model),
                sees_items=sees_items,
                names=trainer.label_names,
                agree=agreement(trainer.accelerator),
            )
            verdict = probe(subject, batches)
            return verdict, _stock(trainer, verdict, batches, scale=scale if sees_items else None, average=average)


def agreement(accelerator: Accelerator) -> Agree:
    """Return what gives each process the largest of all processes' numbers."""

    def agree(numbers: list[float]) -> list[float]:
        import torch

        if accelerator.num_processes == 1:
            return numbers
        mine = torch.tensor([numbers], dtype=torch.float32, device=accelerator.device)
        largest: list[float] = accelerator.gather(mine).amax(0).tolist()
        return largest

    return agree


@contextmanager
def unscaled(trainer: Trainer) -> Iterator[None]:
    """Keep `compute_loss` from multiplying by the number of processes."""
    before = trainer.args.average_tokens_across_devices
    trainer.args.average_tokens_across_devices = False
    try:
        yield
    finally:
        trainer.args.average_tokens_across_devices = before


def _loss_of(trainer: Trainer) -> Callable[[Batch, torch.Tensor | None], torch.Tensor]:
    import torch

    model: nn.Module = trainer.model_wrapped if trainer.is_fsdp_enabled else trainer.model
    # What a loss is the mean over shows best in 32 bits; weights in 16 may need autocast to run at all.
    whole = {weight.dtype for weight in model.parameters()} == {torch.float32}
    precision: Any = nullcontext if whole else trainer.compute_loss_context_manager

    def loss_of(batch: Batch, items: torch.Tensor | None) -> torch.Tensor:
        with precision():
            loss: torch.Tensor = trainer.compute_loss(model, copied(batch), num_items_in_batch=items).detach()
        return loss

    return loss_of


def _loss_scale(trainer: Trainer, batches: Sequence[Batch], *, sees_items: bool) -> float:
    """Return what `compute_loss` multiplies by for the sake of the average over processes."""
    processes = trainer.accelerator.num_processes
    if processes == 1 or agreement(trainer.accelerator)([float(not sees_items)])[0]:
        return 1.0
    loss_of, batch = _loss_of(trainer), batches[0]
    items = counters(batch, names=trainer.label_names, shifted=False)[0](batch).float().clamp(min=1)
    with undisturbed(trainer.model):
        try:
            scaled = float(loss_of(batch, items))
            with unscaled(trainer):
                ratio = scaled / float(loss_of(batch, items))
        except Exception:  # the probe says that the loss cannot be computed
            if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
                raise  # weights that are half prepared would stop the training with an error of their own
            ratio = 1.0
    agreed = agreement(trainer.accelerator)([ratio])[0]
    return float(round(agreed)) if math.isfinite(agreed) else 1.0


def _stock(
    trainer: Trainer, verdict: LossKind, batches: Sequence[Batch], *, scale: float | None, average: bool
) -> Stock:
    """Return what stock Trainer does; `scale` is None where it passes no number of items, `average` its own setting."""
    processes, steps = trainer.accelerator.num_processes, trainer.args.gradient_accumulation_steps
    scaled = trainer.loss_is_scaled_for_ga
    if scaled is None:
        passed = trainer.model_accepts_loss_kwargs and scale is not None
        scaled = passed or trainer.compute_loss_func is not None
    divisor, scale = 1 if scaled else steps, scale or 1.0
    if not verdict.divides:
        factor = scale * steps / divisor
        names = [f"{steps} accumulation steps"] * (divisor == 1 < steps) + [f"{processes} processes"] * (scale > 1)
        exact = steps == processes == 1 and abs(factor - 1) < 1e-7
        return Stock(exact, factor, f"({' times '.join(names)})" if names else "", scale)
    # Where each process counts its own items only, that is one process's share of them.
    factor = (scale / processes if average else 1.0) / divisor
    if verdict.counter is None:
        return Stock(False, factor, "", scale)
    # Where labels are ignored here and there, or nowhere, two ways to count differ that agree on these rows.
    tried = [*batches, try_batches(batches, verdict.counter)[0], _all_labelled(batches[0], verdict.counter)]
    ours = [int(verdict.counter(batch)) for batch in tried]
    theirs = [int(trainer._get_num_items_in_batch([batch], trainer.args.device)) for batch in tried]
    miscounts = agreement(trainer.accelerator)([float(ours != theirs)])[0] > 0
    factor *= sum(ours[:-2]) / max(sum(theirs[:-2]), 1) if any(ours[:-2]) else 1.0
    exact = (processes == 1 or average) and not miscounts and abs(factor - 1) < 1e-7
    return Stock(exact, factor, "", scale)


def _all_labelled(batch: Batch, counter: Counter) -> Batch:
    """Return `batch` with every label valid: it is only counted, and no model sees it."""
    return {**batch, counter.key: batch[counter.key].new_zeros(batch[counter.key].shape)}

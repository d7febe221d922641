"""Accumulation in Trainer that equals one big batch, whatever the head; found by trying, told in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hf_efficient.train.first_rows import first_batch
from hf_efficient.train.items import Batch
from hf_efficient.train.mend import mend
from hf_efficient.train.probe import LossKind
from hf_efficient.train.stock import Stock, try_trainer

if TYPE_CHECKING:
    from transformers import Trainer


@dataclass(frozen=True)
class Accumulation:
    """What `exact_accumulation` found and did.

    `factor` is what the stock Trainer multiplies the gradient of the big batch by, on average over micro-batches; None
    where that is not known. `mended` says whether the trainer was changed; `found` and `done` are sentences.
    """

    found: str
    done: str
    mended: bool = False
    factor: float | None = None

    def __str__(self) -> str:
        return f"{self.found} {self.done}"


_KNOWN: WeakKeyDictionary[Trainer, tuple[tuple[object, ...], Accumulation]] = WeakKeyDictionary()
"""What was told of a trainer, and for which setup of it."""


def exact_accumulation(trainer: Trainer) -> Accumulation:
    """Make each item of an update count the same in `trainer`, as in one big batch; call it before `trainer.train()`.

    The loss is tried on a few rows without a trace: model, collator, random numbers and data loader stay as they were.
    A trainer that is right is not touched; nor is one whose loss is not a mean over items, and the sentence says why.
    Where trying at once could leave a trace (rows that can be read only once, sharded weights, loaders of your own) it
    is tried on the first window of the training. The sentence is printed, and returned; a second call mends nothing
    twice, and returns what the first, or the first window, found.
    """
    setup, known = _KNOWN.get(trainer, ((), None))
    if known is not None and (setup == _setup(trainer) or known.mended):
        return known
    refusal = _refusal(trainer)
    if refusal:
        return _told(trainer, Accumulation(refusal, "Nothing was changed."))
    batch = first_batch(trainer)
    if batch is not None:
        return _settle(trainer, [batch])
    _at_first_window(trainer)
    found = f"How {_name(trainer)} averages its loss is not known yet."
    return _told(trainer, Accumulation(found, "It is tried on the first window of the training, and told then."))


def _refusal(trainer: Trainer) -> str:
    """Return why this trainer cannot be mended at all, or nothing."""
    if trainer.args.n_gpu > 1:
        return (
            "Several GPUs in one process (DataParallel) hide what each of them counts, so accumulation cannot be made "
            "exact: start the script with `accelerate launch`."
        )
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    if (
        parallel is not None
        and trainer.accelerator.num_processes != parallel.dp_replicate_size * parallel.dp_shard_size
    ):
        return "Processes that share rows (tensor, context or sequence parallelism) were not tried: check the loss."
    return ""


def _at_first_window(trainer: Trainer) -> None:
    """Try the loss when the first window is there, with its own batches: nothing is taken from the loader for it."""
    original = trainer.get_batch_samples

    def get_batch_samples(epoch_iterator: Iterator[Batch], num_batches: int, device: Any) -> tuple[list[Batch], Any]:
        batches, items = original(epoch_iterator, num_batches, device)
        if not batches:
            return batches, items
        del trainer.get_batch_samples
        _settle(trainer, batches)
        mended = "get_batch_samples" in vars(trainer)
        return trainer.get_batch_samples(iter(batches), len(batches), device) if mended else (batches, items)

    trainer.get_batch_samples = get_batch_samples


def _settle(trainer: Trainer, batches: list[Batch]) -> Accumulation:
    """Try the loss on `batches`, mend the trainer if it has to be, and tell."""
    verdict, stock = try_trainer(trainer, batches)
    name = _name(trainer)
    if verdict.problem:
        share = "counts that part" if verdict.part else "takes the mean of the micro-batches"
        scaled = f", and stock Trainer {share} {stock.factor:g} times" if abs(stock.factor - 1) > 1e-3 else ""
        found = f"Accumulation changes how {name} trains: {verdict.problem}{scaled}."
        return _told(trainer, Accumulation(found, "Nothing was changed.", factor=stock.factor))
    if verdict.counter is None:
        return _told(trainer, Accumulation(f"{name} could not be tried: {verdict.untried}.", "Nothing was changed."))
    untried = f" (could not be tried, {verdict.untried}: {verdict.counter.how} are taken)" if verdict.untried else ""
    if stock.exact:
        found = f"{name} is averaged over the {verdict.counter.how} of each update{untried}."
        return _told(trainer, Accumulation(found, "Nothing had to be changed.", factor=stock.factor))
    mend(trainer, verdict, loss_scale=stock.loss_scale)
    found = f"{name} {_fault(verdict, stock)}{untried}."
    done = f"Each of the {verdict.counter.how} of an update counts the same now."
    return _told(trainer, Accumulation(found, done, mended=True, factor=stock.factor))


def _fault(verdict: LossKind, stock: Stock) -> str:
    """Say what the stock Trainer does with this loss."""
    means = "takes the mean of the micro-batches' means, whatever their items"
    if abs(stock.factor - 1) <= 1e-6:
        return f"is weighed unevenly: stock Trainer {means}"
    why = "is divided by a wrong number of items" if verdict.divides else "drops num_items_in_batch"
    return f"{why}: stock Trainer would multiply loss and gradient by {stock.factor:.6g} {stock.of}".rstrip()


def _told(trainer: Trainer, report: Accumulation) -> Accumulation:
    _KNOWN[trainer] = (_setup(trainer), report)
    if trainer.is_world_process_zero():
        print(f"exact_accumulation: {report}")
    return report


def _setup(trainer: Trainer) -> tuple[object, ...]:
    """Return what the verdict depends on, as far as a user may still change it between two calls."""
    return (
        trainer.args.gradient_accumulation_steps,
        trainer.args.average_tokens_across_devices,
        trainer.loss_is_scaled_for_ga,
        id(trainer.model),
        id(trainer.compute_loss_func),
    )


def _name(trainer: Trainer) -> str:
    """Return the name of the model's class, inside an adapter's wrapper too."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return type(getattr(model, "get_base_model", lambda: model)()).__name__

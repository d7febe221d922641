"""Mistakes of evaluation: logits that are kept, a batch that nobody set, a missing dataset, casts that stay."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
GIB, GB = 2**30, 10**9
TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")


@check({"transformers": ">=5.0"}, seen="arithmetic")
def evaluation_keeps_logits(
    trainer: Settings, eval: Settings, model: Settings = NOTHING, machine: Settings = NOTHING, sft: Settings = NOTHING
) -> Iterator[Finding]:
    """Find metrics that are computed from the logits of the whole evaluation set, all kept at once.

    With compute_metrics the Trainer keeps the logits of every batch on the device until the last one (trainer.py,
    evaluation_loop) and concatenates them: rows x sequence length x vocabulary x bytes. preprocess_logits_for_metrics
    sees each batch's logits first and may reduce them to their argmax; batch_eval_metrics keeps nothing;
    eval_accumulation_steps only moves the pile to host memory. Models without a vocabulary at every position
    (classification) keep little and are not told. Under mixed precision logits are kept as float32.
    """
    if not _keeps(trainer, eval):
        return
    fix = (
        "Pass preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1) to keep one number a token; "
        "or set batch_eval_metrics=True, or prediction_loss_only=True without metrics. eval_accumulation_steps only "
        "moves the logits to host memory."
    )
    size = _kept(trainer, eval, model)
    if size is UNKNOWN:
        if _per_token(model) or (sft and not model.text("class")):
            yield info(
                "compute_metrics without preprocess_logits_for_metrics",
                why="The Trainer keeps the logits of all evaluation rows (rows x tokens x vocabulary x 4 bytes) until "
                "the metrics are computed.",
                fix=fix,
                at=eval.where("compute_metrics"),
            )
        return
    memory = machine.number("memory_gib")
    full = size / GIB > memory and not trainer.on("eval_accumulation_steps")
    level = info if size <= GIB or trainer.values.get("eval_strategy") == "no" else error if full else warning
    rows, length, words = (_figure(eval, model, key) for key in ("rows", "seq_len", "vocab_size"))
    yield level(
        f"compute_metrics keeps the logits of {rows} rows x {length} tokens x {words} words",
        why=f"That is {size / GIB:.1f} GiB ({size / GB:.1f} GB) until the metrics are computed, and twice that while "
        f"they are concatenated{f', on a card of {memory:.0f} GiB' if memory > 0 else ''}.",
        fix=fix,
        at=eval.where("compute_metrics"),
    )


def _keeps(trainer: Settings, eval: Settings) -> bool:
    reduced = eval.get("preprocess_logits_for_metrics")
    generates = not trainer.off("predict_with_generate") if trainer.said("predict_with_generate") else False
    spared = not trainer.off("batch_eval_metrics") or not trainer.off("prediction_loss_only") or generates
    return eval.on("compute_metrics") and not reduced and reduced is not UNKNOWN and not spared


def _per_token(model: Settings) -> bool:
    """Is the head known to give a vocabulary at every position?"""
    head = model.text("class") or model.text("architecture")
    return any(part in head for part in ("MaskedLM", "CausalLM", "LMHead", "ConditionalGeneration", "PreTraining"))


def _figure(eval: Settings, model: Settings, key: str) -> object:
    return eval.get(key) if eval.said(key) else model.get(key)


def _kept(trainer: Settings, eval: Settings, model: Settings) -> float:
    """Return the bytes of all logits, UNKNOWN where a figure is missing or the head has no vocabulary per token."""
    numbers = [_figure(eval, model, key) for key in ("rows", "seq_len", "vocab_size")]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers):
        return UNKNOWN  # type: ignore[no-any-return]
    named = bool(model.text("class") or model.text("architecture"))
    if named and not _per_token(model):
        return UNKNOWN  # type: ignore[no-any-return]
    half = model.text("load_dtype") if trainer.off("bf16") and trainer.off("fp16") else "float32"
    size = float(BYTES.get(eval.text("logits_dtype") or half, 4))
    for number in numbers:
        size *= number if isinstance(number, int) else 1
    return size


@check({"transformers": ">=4.0"}, seen="read source")
def evaluation_batch_at_its_default(
    trainer: Settings, model: Settings = NOTHING, eval: Settings = NOTHING
) -> Iterator[Finding]:
    """Find an evaluation batch that nobody set, larger than the training batch that was tuned to the card.

    per_device_eval_batch_size is 8 by default, whatever the training batch is. Evaluation needs no gradients, but its
    logits are batch x length x vocabulary, and the first evaluation comes hours into the run. Told only where
    evaluation is on and a training batch below 8 is written out.
    """
    size, default = trainer.number("per_device_train_batch_size"), 8
    unset = not trainer.said("per_device_eval_batch_size") and not trainer.open
    if not (unset and _evaluates(trainer) and trainer.said("per_device_train_batch_size") and 0 < size < default):
        return
    length, words = _figure(eval, model, "seq_len"), _figure(eval, model, "vocab_size")
    more = ""
    if isinstance(length, int) and isinstance(words, int) and trainer.off("prediction_loss_only"):
        wide = BYTES.get(model.text("load_dtype"), 4)
        more = (
            f" Its logits alone take {default * length * words * wide / GIB:.2f} GiB, those of {size} rows "
            f"{size * length * words * wide / GIB:.2f} GiB."
        )
    yield warning(
        f"per_device_eval_batch_size is left at {default}, the training batch is {size}",
        why=f"An evaluation batch {default // size} times the training batch can run out of memory where training fits."
        f"{more}",
        fix=f"Set per_device_eval_batch_size={size}, and raise it as far as memory allows.",
        at=trainer.where("per_device_train_batch_size"),
    )


def _evaluates(trainer: Settings) -> bool:
    strategy = trainer.text("eval_strategy")
    return strategy in ("steps", "epoch") or trainer.on("eval_on_start") or trainer.on("do_eval")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def evaluation_without_dataset(setup: Setup, trainer: Settings, script: Script) -> Iterator[Finding]:
    """Find an evaluation strategy where the Trainer gets no eval_dataset.

    Trainer.__init__ raises ValueError: there is nothing to evaluate on. Only a script's single call of a stock Trainer
    is judged, with all its keywords in sight.
    """
    made = stock_trainer(script)
    if trainer.text("eval_strategy") not in ("steps", "epoch") or made is None or made.open or len(made.args) > 4:
        return
    given = made.keywords.get("eval_dataset") if "eval_dataset" in made.keywords else None
    if given is None and "eval_dataset" not in made.keywords:
        yield error(
            f"eval_strategy={trainer.text('eval_strategy')!r}, and {made.method} gets no eval_dataset",
            why="Trainer raises ValueError while it is made.",
            fix='Pass eval_dataset=..., or set eval_strategy="no".',
            at=made.place,
        )


@check({"transformers": ">=4.30"}, seen="read source")
def metrics_never_called(trainer: Settings, eval: Settings) -> Iterator[Finding]:
    """Find compute_metrics beside prediction_loss_only: it is never called.

    With prediction_loss_only=True the evaluation returns no logits, and compute_metrics is skipped without a word
    (trainer.py, evaluation_loop).
    """
    if trainer.on("prediction_loss_only") and eval.on("compute_metrics"):
        yield info(
            "prediction_loss_only=True, and compute_metrics is given",
            why="Evaluation keeps the loss alone, which spares the logits' memory, and never calls compute_metrics.",
            fix="Leave prediction_loss_only out (preprocess_logits_for_metrics saves memory), or compute_metrics.",
            at=trainer.where("prediction_loss_only"),
        )


@check({"transformers": ">=4.30"}, seen="read source")
def full_eval_before_training(trainer: Settings, script: Script) -> Iterator[Finding]:
    """Find evaluate() before train() with bf16_full_eval or fp16_full_eval: the model stays in half precision.

    Outside training the Trainer casts the model itself for such an evaluation (trainer.py, evaluation_loop,
    `model.to(dtype=...)`), and nothing casts it back: the training that follows has no fp32 weights. Evaluations during
    train() are not cast.
    """
    for key in ("bf16_full_eval", "fp16_full_eval"):
        calls = {name: [c for c in script.calls if c.method == name] for name in ("evaluate", "train")}
        owners = {call.receiver for call in calls["train"]}
        early = [
            c
            for c in calls["evaluate"]
            if c.receiver in owners and not c.guards and any(_before(c, t) for t in calls["train"])
        ]
        if trainer.on(key) and early:
            yield error(
                f"{early[0].receiver}.evaluate() before train() with {key}=True",
                why="The evaluation casts the model's weights to half precision and leaves them so: training "
                "has no fp32 weights to update.",
                fix=f"Evaluate with another Trainer, or set {key}=False; eval_on_start=True casts nothing.",
                at=early[0].place,
            )


def _before(first: Call, then: Call) -> bool:
    same = first.receiver == then.receiver and first.function == then.function
    return same and first.node.lineno < then.node.lineno and not then.guards


def stock_trainer(script: Script) -> Call | None:
    """Return the script's only Trainer, where it is transformers' own."""
    made = [call for call in script.calls if call.method.endswith("Trainer") and call.method[0].isupper()]
    return made[0] if len(made) == 1 and made[0].name in TRAINERS else None


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def batch_metrics_without_flag(trainer: Settings, script: Script) -> Iterator[Finding]:
    """Find batch_eval_metrics with a compute_metrics that does not take compute_result.

    With batch_eval_metrics the function is called on each batch and told by compute_result when to sum up; Trainer
    raises ValueError where the parameter is missing.
    """
    made = stock_trainer(script)
    node = next((k.value for k in made.node.keywords if k.arg == "compute_metrics"), None) if made is not None else None
    function = script.functions.get(node.id) if isinstance(node, ast.Name) else None
    if not trainer.on("batch_eval_metrics") or function is None or made is None:
        return
    names = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
    if "compute_result" not in names:
        yield error(
            f"batch_eval_metrics=True, and {function.name} takes no compute_result",
            why="Trainer raises ValueError while it is made: the function must be told which batch is the last.",
            fix=f"Write def {function.name}(prediction, compute_result), and return the metrics where it is true.",
            at=made.place,
        )

"""Mistakes with torch.compile: shapes that change, names that are none, the batch finder, two who ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.follow import Symbol
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import listed, nearest

BACKENDS = (
    "no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi", "fx2trt",
    "onnxrt", "tensorrt", "aot_torchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron",
)  # fmt: skip
"""accelerate's DynamoBackend (1.15, utils/dataclasses.py)."""
MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs, one for each shape."""
RATIO = 0.9


def compiled(setup: Setup, *, own: bool = True) -> tuple[str, Place] | None:
    """Return what turns torch.compile on, as written, and where; None where nothing is known to.

    With `own` also what the script itself compiles, by torch.compile(model) or model.compile().
    """
    trainer, launch, env = setup.trainer or NOTHING, setup.launch or NOTHING, setup.env or NOTHING
    accelerator = setup.accelerator or NOTHING
    if trainer.on("torch_compile"):
        return "torch_compile=True", trainer.where("torch_compile")
    for key in ("torch_compile_backend", "torch_compile_mode"):
        if trainer.text(key):
            return f"{key}={trainer.get(key)!r}, which turns torch_compile on,", trainer.where(key)
    for owner, key in (
        (accelerator, "dynamo_backend"),
        (accelerator, "dynamo_plugin.backend"),
        (env, "ACCELERATE_DYNAMO_BACKEND"),
        (launch, "dynamo_backend"),
        (launch, "dynamo_config.dynamo_backend"),
    ):
        value = backend(owner.get(key))
        if value and value != "no":
            return f"{key}={owner.get(key)}", owner.where(key)
    model = setup.model or NOTHING
    if own and model.get("compiled") is True:
        return "torch.compile of the model", model.where("compiled")
    return None


def backend(value: Any) -> str:
    """Return a backend's name in small letters, also of `DynamoBackend.INDUCTOR`; empty where it is unknown."""
    return value.rpartition(".")[2].lower() if isinstance(value, str) else ""


def mode(setup: Setup) -> str:
    """Return the mode of torch.compile that is asked for; empty: none is named."""
    trainer, launch, env = setup.trainer or NOTHING, setup.launch or NOTHING, setup.env or NOTHING
    asked = trainer.on("torch_compile") or trainer.text("torch_compile_backend")
    if trainer.text("torch_compile_mode") or asked:
        return trainer.text("torch_compile_mode")
    names = (
        (setup.accelerator or NOTHING).text("dynamo_plugin.mode"),
        (setup.model or NOTHING).text("compile_mode"),
        env.text("ACCELERATE_DYNAMO_MODE"),
        launch.text("dynamo_mode"),
        launch.text("dynamo_config.dynamo_mode"),
    )
    return next((name for name in names if name), "")


@check({"torch": ">=2.0"}, seen="read source")
def compiled_with_changing_lengths(setup: Setup, data: Settings = NOTHING) -> Iterator[Finding]:
    """Find torch.compile over batches that are padded to their own longest row.

    A compiled graph is guarded by its shapes: a batch of another length is compiled again, and after the second time
    with dynamic lengths. Modes "reduce-overhead" and "max-autotune" record a CUDA graph besides, which replays one
    shape only, so that every new length is recorded again and kept in memory. Padding to one length, or to few,
    avoids both. Not said where padding is fixed, rounded up (pad_to_multiple_of), grouped by length, or unknown.
    """
    asked, how, trainer = compiled(setup), mode(setup), setup.trainer or NOTHING
    graphs = how in GRAPHS
    dynamic = (setup.model or NOTHING).get("compile_dynamic") is True
    if asked is None or not _changing(setup, data) or (dynamic and not graphs):
        return
    level = warning if graphs else info
    why = (
        f"Each new length is compiled again, and mode {how!r} records a CUDA graph for each length besides."
        if graphs
        else "A second length is compiled again, from then on with dynamic shapes, whose kernels are slower."
    )
    yield level(
        f"{asked[0]} with batches padded to their own longest row",
        why=why,
        fix='Pad to one length (padding="max_length"), or to few (pad_to_multiple_of=64, train_sampling_strategy='
        f'"group_by_length"){", or compile in mode default, with dynamic shapes" if graphs else ""}.',
        at=asked[1] if asked[1].line or not trainer else trainer.place,
    )


def _changing(setup: Setup, data: Settings) -> bool:
    trainer = setup.trainer or NOTHING
    rounded = data.get("pad_to_multiple_of") is not None or trainer.get("pad_to_multiple_of") not in (None, "auto")
    grouped = trainer.text("train_sampling_strategy") == "group_by_length" or trainer.on("group_by_length")
    return data.text("padding") == "longest" and not rounded and not grouped and not trainer.on("packing")


@check({"torch": ">=2.0"}, seen="read source")
def compiled_last_batch(setup: Setup, data: Settings = NOTHING) -> Iterator[Finding]:
    """Find torch.compile where the last batch of an epoch may be smaller than the others.

    One more shape is one more compilation (and one more CUDA graph in the modes that record them), once per run:
    seconds to minutes. dataloader_drop_last leaves the ragged batch out. Only said where the number of rows shows it.
    """
    trainer, asked = setup.trainer or NOTHING, compiled(setup)
    rows, size = data.number("rows"), trainer.number("per_device_train_batch_size")
    ranks = setup.processes or 1
    whole = isinstance(rows, int) and isinstance(size, int) and size > 0 and rows >= size * ranks
    if asked and whole and rows % (size * ranks) and trainer.off("dataloader_drop_last"):
        yield info(
            f"{asked[0]}, and {rows} rows are no multiple of {size} x {ranks}",
            why="The last batch of an epoch is smaller, and a new shape is compiled once more.",
            fix="Set dataloader_drop_last=True, or take a number of rows that the batch divides.",
            at=asked[1],
        )


@check({"transformers": ">=4.20"}, seen="ran on CPU")
def batch_finder_on_a_compiled_model(setup: Setup, trainer: Settings) -> Iterator[Finding]:
    """Find auto_find_batch_size together with torch.compile: every size tried is compiled again.

    accelerate's find_executable_batch_size starts over with int(size * 0.9) after each out-of-memory error
    (utils/memory.py, since 1.10; earlier half the size), and each size is a new shape for the compiler. The finder also
    goes on with weights that the failed try has trained.
    """
    asked = compiled(setup)
    if asked is None or not trainer.on("auto_find_batch_size"):
        return
    size = trainer.number("per_device_train_batch_size")
    tried = " -> ".join(map(str, sizes(size))) if isinstance(size, int) else ""
    yield warning(
        f"auto_find_batch_size=True with {asked[0]}",
        why=f"Each batch size that is tried is compiled again{f': {tried} ...' if tried else ''}, and a try that fails "
        "has cost its compilation.",
        fix="Find the size once without torch_compile, write it as per_device_train_batch_size, and compile then.",
        at=trainer.where("auto_find_batch_size"),
    )


def sizes(start: int, most: int = 7) -> list[int]:
    """Return the batch sizes that accelerate's finder tries, as long as they are at least 1."""
    found = [start]
    while len(found) < most and int(found[-1] * RATIO) >= 1:
        found.append(int(found[-1] * RATIO))
    return found


@check({"accelerate": ">=0.20"}, seen="ran on CPU")
def unknown_compile_backend(setup: Setup) -> Iterator[Finding]:
    """Find a backend of torch.compile that accelerate does not know, or a mode that torch does not.

    accelerate turns the name into DynamoBackend and raises ValueError for another one (Trainer: while it is made;
    `accelerate launch`: before the script starts). A mode is looked up when the first batch is compiled.
    """
    trainer, launch, env = setup.trainer or NOTHING, setup.launch or NOTHING, setup.env or NOTHING
    accelerator = setup.accelerator or NOTHING
    for owner, key, known in (
        (trainer, "torch_compile_backend", BACKENDS),
        (accelerator, "dynamo_backend", BACKENDS),
        (launch, "dynamo_backend", BACKENDS),
        (launch, "dynamo_config.dynamo_backend", BACKENDS),
        (env, "ACCELERATE_DYNAMO_BACKEND", BACKENDS),
        (trainer, "torch_compile_mode", MODES),
        (launch, "dynamo_mode", MODES),
        (launch, "dynamo_config.dynamo_mode", MODES),
        (env, "ACCELERATE_DYNAMO_MODE", MODES),
    ):
        value = owner.get(key)
        plain = backend(value) if known is BACKENDS else value
        if not isinstance(value, str) or (isinstance(value, Symbol) and known is MODES) or plain in known or not plain:
            continue
        close = nearest(str(plain), known)
        raises = "accelerate raises ValueError" if known is BACKENDS else "torch.compile raises at the first batch"
        yield error(
            f"{key}={value!r} is none that torch.compile has here",
            why=f"{raises}.",
            fix=f"{f'Did you mean {close!r}? ' if close else ''}It may be {listed(known[:8], 'or')}.",
            at=owner.where(key),
        )


@check({"transformers": ">=4.28"}, seen="ran on CPU")
def compile_turned_on_by_its_options(trainer: Settings) -> Iterator[Finding]:
    """Find torch_compile=False beside a backend or a mode of torch.compile: the model is compiled all the same.

    TrainingArguments set torch_compile=True as soon as torch_compile_backend or torch_compile_mode is given
    (training_args.py, __post_init__).
    """
    key = "torch_compile_backend" if trainer.text("torch_compile_backend") else "torch_compile_mode"
    if trainer.said("torch_compile") and trainer.off("torch_compile") and trainer.text(key):
        yield warning(
            f"torch_compile=False, but {key}={trainer.get(key)!r}",
            why=f"{key} turns torch_compile on, whatever is said beside it: the model is compiled.",
            fix=f"Leave {key} out for a run without torch_compile, or write torch_compile=True.",
            at=trainer.where(key),
        )


@check({"transformers": ">=4.28"}, seen="read source")
def compile_asked_for_twice(
    trainer: Settings, launch: Settings = NOTHING, env: Settings = NOTHING
) -> Iterator[Finding]:
    """Find a Trainer that compiles in one way while the launcher or the environment asks for another.

    The Trainer hands its own TorchDynamoPlugin to Accelerator, so backend and mode of the arguments win; what
    ACCELERATE_DYNAMO_* says counts only where the arguments leave torch_compile off, and there it compiles.
    """
    asked = trainer.on("torch_compile") or trainer.text("torch_compile_backend")
    for owner, key in (
        (launch, "dynamo_backend"),
        (launch, "dynamo_config.dynamo_backend"),
        (env, "ACCELERATE_DYNAMO_BACKEND"),
    ):
        other = backend(owner.get(key))
        own = backend(trainer.get("torch_compile_backend")) or "inductor"
        if not other or other not in BACKENDS or trainer.get("torch_compile_backend") is UNKNOWN:
            continue
        if asked and other not in ("no", own):
            yield info(
                f"{key}={owner.get(key)} beside torch_compile with backend {own}",
                why="The arguments win: the Trainer hands over its own settings, and the launcher's are not read.",
                fix=f"Write torch_compile_backend={other!r}, or leave {key} out.",
                at=owner.where(key),
            )
        elif trainer.said("torch_compile") and trainer.off("torch_compile") and other != "no" and not asked:
            yield warning(
                f"torch_compile=False, but {key}={owner.get(key)}",
                why="accelerate reads the launcher's setting where the Trainer has none, and compiles the model.",
                fix=f'Set {key} to "no" for a run without torch.compile, or write torch_compile=True.',
                at=owner.where(key),
            )

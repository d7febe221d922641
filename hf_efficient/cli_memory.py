"""The command `memory`: how much a training step takes, before it is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_efficient.options import AsJson, Model, Without, machine_at, show

if TYPE_CHECKING:
    from hf_efficient.machine import Machine
    from hf_efficient.memory.results import Batch, Estimate
    from hf_efficient.memory.stages import Sharding
    from hf_efficient.plan import Plan

Plans = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Presets and tricks; a / of its own parts plans side by side: lean / lean 'zero(3)'."
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option("--batch-size", metavar="B", help="Rows on one GPU, or a comma list; else the plan's own."),
]
SeqLen = Annotated[int | None, typer.Option("--seq-len", metavar="S", min=1, help="Tokens of a row.")]
TargetLen = Annotated[
    int | None, typer.Option("--target-len", metavar="T", min=1, help="Tokens of a target, for encoder-decoders.")
]
Padding = Annotated[
    bool,
    typer.Option(
        "--padding",
        help="Rows differ in length: attention gets a mask, and the allocator caches pieces of every length.",
    ),
]
Eval = Annotated[bool, typer.Option("--eval", help="Estimate evaluation too, at the plan's batch or else 8 rows.")]
EvalSize = Annotated[
    int | None, typer.Option("--eval-batch-size", metavar="B", min=1, help="Rows of an evaluation batch.")
]
EvalRows = Annotated[
    int | None,
    typer.Option("--eval-rows", metavar="R", min=1, help="Rows of the evaluation set, whose logits metrics keep."),
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", metavar="G", help="Does it fit on this card? Without it: on which would it?")
]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus",
        metavar="N",
        min=1,
        help="Cards that train together; of one plan at one batch, ZeRO, FSDP and DDP are compared.",
    ),
]
Plot = Annotated[
    list[str] | None,
    typer.Option("--plot", metavar="FILE", help="Draw it as .png or .svg (repeatable, or a list)."),
]


def memory(
    names: Plans,
    model: Model,
    batch_size: Sizes = None,
    seq_len: SeqLen = None,
    target_len: TargetLen = None,
    padding: Padding = False,
    evaluation: Eval = False,
    eval_batch_size: EvalSize = None,
    eval_rows: EvalRows = None,
    gpu: Gpu = None,
    gpus: Gpus = 1,
    plot: Plot = None,
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the GPU memory of a training step from the model's config.json: no weights are read, no GPU is needed.

    Exit code 1 says that one of the estimates does not fit on the card that --gpu names.
    """
    from hf_efficient import render_memory
    from hf_efficient.machine import Machine
    from hf_efficient.memory import cases, picture
    from hf_efficient.merge import make_plan

    paths = [Path(name) for name in cases.listed_values(plot or ())]
    picture.require_drawable(paths)
    machine = Machine.named(gpu, gpus=gpus) if gpu else None
    plans = [make_plan(*part, without=without or (), machine=machine_at(gpu)) for part in cases.plans(names)]
    rows: dict[str, Any] = {"seq_len": seq_len, "target_len": target_len, "padding": padding}
    rows |= {"evaluate": evaluation, "eval_size": eval_batch_size, "eval_rows": eval_rows}
    asked = [(plan, batch) for plan in plans for batch in cases.batches(plan, batch_size, **rows)]
    for sentence in cases.remarks(plans, machine):
        print(sentence, file=sys.stderr)
    estimates, sharding = _estimated(asked, model, machine, gpus=gpus)
    show(render_memory.data(estimates, sharding), as_json, lambda data: render_memory.tables(estimates, sharding))
    for path in paths:
        picture.draw(estimates, path)
        print(f"wrote {path}", file=sys.stderr)
    if any(one.fits is False for one in estimates):
        raise typer.Exit(1)


def _estimated(
    asked: Sequence[tuple[Plan, Batch]], model: str, machine: Machine | None, *, gpus: int
) -> tuple[list[Estimate], Sharding | None]:
    """Return what was asked; of one plan at one batch on several GPUs, with each sharding too."""
    if len(asked) == 1 and gpus > 1:
        from hf_efficient.memory.stages import stages

        ((plan, batch),) = asked
        sharding = stages(plan, model, batch=batch, machine=machine, gpus=gpus)
        return [sharding.asked], sharding
    from hf_efficient.memory.estimate import estimate

    return [estimate(plan, model, batch=batch, machine=machine, gpus=gpus) for plan, batch in asked], None

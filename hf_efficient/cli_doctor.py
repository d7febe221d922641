"""The command `doctor`: reads files, asks every check, and shows, writes or mends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_efficient.options import print_json

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Scripts, shell lines, YAML, JSON, a checkpoint folder.")
]
Against = Annotated[str | None, typer.Option("--model", metavar="M", help="Check against this Hub id or folder.")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Check against this card, such as rtx4090; see list gpus.")]
Format = Annotated[Literal["table", "json", "sarif"], typer.Option("--format", help="How to show what was found.")]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep Python from looking for garbage: syntax trees are many objects, and the answer comes before memory matters.

    Measured on the README's files: 13 to 18 % of the time (2026-11-30, Python 3.11.7).
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def doctor(
    files: Files,
    model: Against = None,
    gpu: Gpu = None,
    probe: Annotated[bool, typer.Option("--probe", help="Build a tiny model and look at the real object.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Show what can be mended safely as a diff, then write it.")
    ] = False,
    format: Format = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Find what is wrong in files that make a training, and what each setting ends up as; runs none of them."""
    form = "json" if as_json else format
    with _without_collecting():
        from hf_efficient import render_doctor
        from hf_efficient.doctor import examine_files

        if fix:
            from hf_efficient.doctor.fix import mend

            mended = mend(files, render_doctor.tell_diff, gpu=gpu, model=model)
            render_doctor.tell_mended(mended)
        report = examine_files(files, gpu=gpu, model=model)
    if probe:
        from hf_efficient.doctor.probe import probed

        report = probed(report)
    if form == "json":
        print_json(report.data())
    elif form == "sarif":
        from hf_efficient.doctor.sarif import sarif

        print_json(sarif(report.findings))
    else:
        render_doctor.report(report.data())
    if report.failed:
        raise typer.Exit(1)

"""The command line: each command reads, calls one function and renders; nothing is decided here.

A command imports what it needs when it is called, so that none waits for another's modules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hf_efficient.cli_doctor import doctor
from hf_efficient.cli_memory import memory
from hf_efficient.options import AsJson, Gpu, Model, Names, Without, machine_at, print_json, show
from hf_efficient.wording import one_sentence

if TYPE_CHECKING:
    from hf_efficient.shipped import Kind

app = typer.Typer(
    help="Training-efficiency tricks for Hugging Face Trainer and Accelerate: plans that become objects and files.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR")]


@app.command("list")
def list_(kind: Annotated[str | None, typer.Argument(metavar="KIND")] = None, as_json: AsJson = False) -> None:
    """List tricks, presets, recipes, configs, checks and gpus, or one of them."""
    from hf_efficient import describe, render
    from hf_efficient.machine import this_machine

    show(describe.lists(kind), as_json, render.lists)
    if not as_json and kind in (None, "tricks"):
        render.sentences("unmet", describe.unmet_tricks(this_machine()))


@app.command()
def explain(names: Names, gpu: Gpu = None, as_json: AsJson = False) -> None:
    """Explain tricks, presets and check codes: what they set, save, cost, need or find, and when to use them."""
    from hf_efficient import describe, render

    machine = machine_at(gpu)
    pages = [describe.page(name, machine) for name in names]
    if as_json:
        print_json(pages[0] if len(pages) == 1 else pages)
    else:
        for page in pages:
            render.page(page)


@app.command()
def plan(
    names: Names,
    gpu: Gpu = None,
    processes: Annotated[int, typer.Option("--processes", help="Processes of the run.")] = 1,
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Merge presets and tricks into settings, each with its author, and say what the machine lacks for them."""
    from hf_efficient import describe, render
    from hf_efficient.merge import make_plan

    machine = machine_at(gpu)
    made = make_plan(*names, without=without or (), machine=machine)
    show(describe.plan_report(made, machine, processes), as_json, render.plan)


@app.command("emit")
def emit_(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="training-args, accelerate, deepspeed or python.")],
    names: Names,
    args_class: Annotated[
        Literal["trainer", "sft"], typer.Option("--class", help="Class of training-args.")
    ] = "trainer",
    door: Annotated[
        Literal["trainer", "sft", "accelerate"], typer.Option("--door", help="Script of python.")
    ] = "trainer",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file.")] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="Processes of the run.")] = None,
    gpu: Gpu = None,
    without: Without = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Accepted everywhere; here the output is the file itself.")
    ] = False,
) -> None:
    """Write a plan as a file: TrainingArguments as JSON, accelerate YAML, DeepSpeed JSON or lines of Python."""
    from hf_efficient.emit.files import write
    from hf_efficient.emit.targets import Options, emit, not_in_file
    from hf_efficient.merge import make_plan

    machine = machine_at(gpu)
    made = make_plan(*names, without=without or (), machine=machine)
    file = output.name if output else "launch.yaml"
    options = Options(args_class=args_class, door=door, processes=processes, file=file)
    text = emit(made, target, options)
    for sentence in made.unmet(machine):
        print(f"unmet: {sentence}", file=sys.stderr)
    for sentence in not_in_file(made, target, machine, options):
        print(f"not in this file: {sentence}", file=sys.stderr)
    if output:
        write(output, text)
        print(f"wrote {output}", file=sys.stderr)
    else:
        print(text, end="")


@app.command()
def verify(
    names: Names,
    model: Model,
    data: Annotated[
        str | None, typer.Option("--data", metavar="F", help="Texts: train the model itself, and no tiny one.")
    ] = None,
    door: Annotated[Literal["trainer", "loop"], typer.Option("--door", help="What trains.")] = "trainer",
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Train a few updates with and without each trick and say which promises about the training were kept."""
    from hf_efficient import render
    from hf_efficient.promises.verify import verify as verdicts

    tell = render.tell_verdict if sys.stderr.isatty() else None
    rows = [v.row() for v in verdicts(*names, model=model, data=data, without=without or (), door=door, tell=tell)]
    show({"verdicts": rows}, as_json, render.verdicts)
    if any(row["verdict"] == "broken" for row in rows):
        raise typer.Exit(1)


app.command()(memory)
app.command()(doctor)


@app.command()
def machine(gpu: Gpu = None, as_json: AsJson = False) -> None:
    """Say what this machine is, as plans see it, or what a card of the table is."""
    from hf_efficient import describe, render

    show(describe.machine_row(machine_at(gpu)), as_json, render.machine)


recipe = typer.Typer(help="Training scripts to read, copy and launch.")
config = typer.Typer(help="DeepSpeed files and launch files to copy into your project.")
app.add_typer(recipe, name="recipe")
app.add_typer(config, name="config")


@recipe.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes."""
    _list("recipes", as_json)


@recipe.command("copy")
def copy_recipe(name: str, folder: Folder, as_json: AsJson = False) -> None:
    """Copy a recipe into a folder."""
    _copy("recipes", name, folder, as_json=as_json)


@config.command("list")
def list_configs(as_json: AsJson = False) -> None:
    """List the DeepSpeed files and the launch files."""
    _list("configs", as_json)


@config.command("copy")
def copy_config(
    name: str,
    folder: Folder,
    nvme_path: Annotated[
        str | None, typer.Option("--nvme-path", metavar="P", help="Folder that zero3_nvme offloads to.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a DeepSpeed file (zero3) or a launch file (launch/zero3) into a folder."""
    _copy("configs", name, folder, nvme_path=nvme_path, as_json=as_json)


def _list(kind: Kind, as_json: bool) -> None:
    from hf_efficient import describe, render

    show(describe.lists(kind), as_json, render.lists)


def _copy(kind: Kind, name: str, folder: Path, *, as_json: bool, nvme_path: str | None = None) -> None:
    from hf_efficient.shipped import copy

    path = copy(kind, name, folder, nvme_path=nvme_path)
    show({"copied": str(path)}, as_json, lambda data: print(f"copied {data['copied']}"))


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 fine, 1 what is broken or does not fit, 2 bad usage."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return int(app(argv or ["--help"], standalone_mode=False) or 0)
    except ValueError as error:
        return _refuse(one_sentence(error))
    except OSError as error:
        return _refuse(f"Cannot write the output: {one_sentence(error)}.")
    except Exception as error:
        # typer's own usage errors, whichever click they come from
        if not hasattr(error, "format_message"):
            raise
        return _refuse(f"{one_sentence(ValueError(error.format_message())).rstrip('.')}. See --help.")


def _refuse(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""The runs that the files describe: which script goes with which command, launch file and DeepSpeed file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any

from hf_efficient.doctor.gather import deepspeed_names, same_file
from hf_efficient.reading.machines import at_hand, machine_settings
from hf_efficient.reading.parts import Command, Part
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import SUBJECTS, Setup

LIMIT = 64
"""Runs looked at for one answer."""
AROUND = {"machine", "processes", "launcher", "env", "data", "eval"}
"""What a setup document may say of a run that other files describe."""


def runs_of(parts: Sequence[Part], *, machine: Settings | None = None, model: Settings | None = None) -> list[Setup]:
    """Return one setup for each run: each script under each command and file that may go with it.

    `machine` and `model` are what the user says to check against, over what the files say.
    """
    documents = [part.setup for part in parts if part.setup is not None]
    around = [document for document in documents if _subjects(document) <= AROUND]
    whole = [document for document in documents if not _subjects(document) <= AROUND]
    bare = _bare(parts)
    if len(whole) == 1 and bare:
        around, whole = [*around, *whole], []
    overlay = reduce(merged, [*around, *(_beside(part) for part in parts)], Setup())
    alone = bool(documents) or overlay.checkpoint is not None
    found = [merged(run, overlay) for run in [*bare, *whole]] or ([overlay] if alone else [])
    return [_at(run, machine, model) for run in found[:LIMIT]]


def merged(run: Setup, more: Setup) -> Setup:
    """Return a run with what another setup says besides; the other wins key by key."""
    values: dict[str, Any] = {}
    for name in (*SUBJECTS, "checkpoint"):
        one, other = getattr(run, name), getattr(more, name)
        values[name] = (
            _both(name, one, other) if one is not None and other is not None else other if one is None else one
        )
    for name in ("processes", "launcher", "script"):
        values[name] = getattr(more, name) if getattr(more, name) is not None else getattr(run, name)
    names = tuple(dict.fromkeys((*run.files, *more.files)))
    return replace(run, **values, files=names, references=(*run.references, *more.references))


def _both(name: str, one: Settings, other: Settings) -> Settings:
    return other.deeply_over(one) if name == "launch" else other.over(one)


def _subjects(setup: Setup) -> set[str]:
    return {name for name, value in setup.subjects() if value is not None} - {"files", "effective", "references"}


def _beside(part: Part) -> Setup:
    """Return what a model's configuration or a checkpoint folder adds to every run."""
    if part.kind == "config":
        config = Settings({"config": part.settings.values}, place=part.settings.place)
        return Setup(model=config, files=(part.file,))
    if part.kind == "checkpoint":
        return Setup(checkpoint=part.settings, files=(part.file,))
    return Setup()


def _bare(parts: Sequence[Part]) -> list[Setup]:
    """Return the runs that scripts, commands, launch files, DeepSpeed files and files of arguments make together."""
    scripts = [part for part in parts if part.kind == "script"]
    commands = [command for part in parts for command in part.commands]
    starts = [_started(part, command, parts) for part in scripts for command in _commands(part, commands)]
    alone = [command for command in commands if not any(_starts(command, part) for part in scripts)]
    # a command that names a script that was not given is a run of its own, and says nothing of the scripts that were
    starts += [_started(None, command, parts) for command in alone if command.script or not scripts]
    if not starts:
        starts = [_started(None, None, parts)]
    return [run for many in starts for run in many]


def _commands(script: Part, commands: Sequence[Command]) -> list[Command | None]:
    """Return the commands that start a script; one None where none does."""
    mine = [command for command in commands if _starts(command, script)]
    unnamed = [command for command in commands if not command.script]
    return [*(mine or unnamed)] or [None]


def _starts(command: Command, script: Part) -> bool:
    """Does a command name the script, as a path or as the module of `python -m`?"""
    name = command.script
    module = "" if name.endswith(".py") or not name else f"{name.replace('.', '/')}.py"
    return same_file(name, script.file) or (bool(module) and same_file(module, script.file))


def _started(script: Part | None, command: Command | None, parts: Sequence[Part]) -> list[Setup]:
    """Return the runs of a script (or of none) under a command (or none), one for each choice of files beside them."""
    found = []
    for base in _bases(script, command):
        launches = _launches(command, base, parts)
        for launch, arguments in product(launches, _arguments(command, base, parts)):
            run = _with_arguments(_with_launch(base, command, launch), command, arguments)
            found += [_with_deepspeed(run, part) for part in _deepspeeds(run, command, parts)]
    return [run for run in found if _subjects(run)][:LIMIT]


def _bases(part: Part | None, command: Command | None) -> list[Setup]:
    """Return what a script says under a command: one setup for each configuration that it builds."""
    if part is None or part.script is None:
        return [Setup()]
    from hf_efficient.reading.parser import parsed
    from hf_efficient.reading.script_setup import setups

    script = part.script
    if command is not None and command.script and (held := parsed(script, command.arguments)):
        script = Script(script.source, script.file, told=held)
    own = setups(script) or [Setup(script=script)]
    return [replace(setup, files=(part.file,)) for setup in own]


def _launches(command: Command | None, base: Setup, parts: Sequence[Part]) -> list[Part | None]:
    """Return the launch files that may go with a command: the named one, else all that nothing names, else none."""
    launches = [part for part in parts if part.kind == "launch"]
    if command is not None and command.launcher != "accelerate":
        return [None]
    if command is not None and command.config_file:
        return [part for part in launches if same_file(command.config_file, part.file)] or [None]
    return [*free(launches, parts)] or [None]


def _arguments(command: Command | None, base: Setup, parts: Sequence[Part]) -> list[Part | None]:
    """Return the files of arguments that a command or its script names, else all that nothing names, else none."""
    files = [part for part in parts if part.kind == "arguments"]
    names = [*(command.files if command is not None else ()), *base.references]
    named = [part for part in files if any(same_file(name, part.file) for name in names)]
    return [*(named or free(files, parts))] or [None]


def free(files: Sequence[Part], parts: Sequence[Part]) -> list[Part]:
    """Return the files that no other one names: what is named goes with those that name it."""
    names = [name for part in parts if part.kind != "shell" for name in deepspeed_names(part)]
    for command in (command for part in parts for command in part.commands):
        names += [command.config_file, *command.files]
    return [part for part in files if not any(same_file(name, part.file) for name in names if name)]


def _deepspeeds(run: Setup, command: Command | None, parts: Sequence[Part]) -> list[Part | None]:
    """Return the DeepSpeed files that may go with a run: those it names, else all that nothing names."""
    files = [part for part in parts if part.kind == "deepspeed"]
    names = [*run.references, *(n for part in parts if part.file in run.files for n in deepspeed_names(part))]
    names += command.files if command is not None else ()
    for subject in (run.trainer, run.accelerator):
        names.append(subject.text("deepspeed") if subject is not None else "")
    named = [part for part in files if any(same_file(name, part.file) for name in names if name)]
    return [*(named or free(files, parts))] or [None]


def _with_launch(base: Setup, command: Command | None, launch: Part | None) -> Setup:
    run = base
    if launch is not None:
        run = merged(run, Setup(launch=launch.settings, files=(launch.file,), launcher="accelerate"))
    if command is not None:
        named = bool(command.config_file) and launch is None
        forks = base.processes is not None and command.launcher == "python"  # the script starts its processes itself
        more = Setup(
            launch=Settings(open=True).over(command.launch) if named else command.launch or None,
            env=command.env or None,
            launcher=None if forks else command.launcher,
            processes=None if forks else command.processes,
            files=(str(command.place),) if command.place.file else (),
        )
        run = merged(run, more)
    processes = run.launch.number("num_processes") if run.launch is not None else None
    if run.processes is None and isinstance(processes, int):
        run = replace(run, processes=processes)
    return run


def _with_arguments(run: Setup, command: Command | None, arguments: Part | None) -> Setup:
    """Lay files of arguments and then the command line over what the script itself says."""
    if arguments is None and (command is None or not command.arguments):
        return run
    from hf_efficient.doctor.arguments import arguments_setup

    if command is not None and command.script == "trl sft" and run.sft is None and (arguments or command.arguments):
        run = replace(run, sft=run.trainer or Settings())
    if arguments is not None:
        named = any(same_file(name, arguments.file) for name in run.references)
        run = merged(arguments_setup(run, arguments.settings, named=named), Setup(files=(arguments.file,)))
    if command is not None and command.arguments:
        run = arguments_setup(run, command.arguments)
    return run


def _with_deepspeed(run: Setup, part: Part | None) -> Setup:
    return run if part is None else merged(run, Setup(deepspeed=part.settings, files=(part.file,)))


def _at(run: Setup, machine: Settings | None, model: Settings | None) -> Setup:
    """Return a run on the machine and with the model that the user says, else that the files say, else this machine."""
    said = [settings for settings in (machine, run.machine) if settings]
    here = machine_settings(said[0].over(said[1]) if len(said) > 1 else said[0]) if said else at_hand()
    if machine is not None and run.machine is not None and run.machine.text("gpu"):
        kept = {k: v for k, v in run.machine.values.items() if k in ("gpus", "packages")}
        here = machine_settings(Settings(kept | machine.values))
    if model is not None:
        run = replace(run, model=model.over(run.model or Settings()))
    return replace(run, machine=here if here else None)


def files_of(runs: Iterable[Setup]) -> list[str]:
    """Return the files that the runs were made of, in their order."""
    return list(dict.fromkeys(file for run in runs for file in run.files))

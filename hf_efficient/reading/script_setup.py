"""From a parsed training script to setups: one for each configuration that the script builds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from hf_efficient.reading.flow import Around, branches, exclusive
from hf_efficient.reading.lineage import Lineage, argument, inside, lineage, returns
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_accelerator import (
    argument_files,
    deepspeed_calls,
    read_accelerator,
    read_deepspeed,
    read_env,
)
from hf_efficient.reading.script_data import read_dataloader
from hf_efficient.reading.script_inputs import loader_settings, read_data, read_evaluation
from hf_efficient.reading.script_loop import (
    optimizer_calls,
    parameters_of,
    read_optimizer,
    read_scheduler,
    scheduler_calls,
    training_mode,
)
from hf_efficient.reading.script_model import is_model, read_model, with_keywords
from hf_efficient.reading.script_peft import read_peft
from hf_efficient.reading.script_trainer import Arguments, arguments_of, every, trainers
from hf_efficient.reading.script_values import put
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

MOST = 8
"""Alternatives that are answered for one script."""


def setups(script: Script) -> list[Setup]:
    """Return one setup for each configuration that the script builds, at most eight; at least one."""
    shared = _Shared(read_accelerator(script), read_env(script), optimizer_calls(script), scheduler_calls(script))
    return [_setup(script, shared, trainer, arguments) for trainer, arguments in _alternatives(script)]


class _Shared(NamedTuple):
    """What all configurations of a script have in common."""

    accelerator: Settings | None
    env: Settings | None
    optimizers: list[Call]
    schedulers: list[Call]


def _alternatives(script: Script) -> list[tuple[Call | None, Arguments | None]]:
    """Return the Trainers with the arguments that each may get; branches that exclude each other are not paired."""
    found: list[tuple[Call | None, Arguments | None]] = []
    for trainer in trainers(script)[:MOST]:
        for one in arguments_of(script, trainer):
            apart = one.call is not None and exclusive(_branches(one.call), _branches(trainer))
            found += [] if apart else [(trainer, one)]
    if not found:
        found += [(None, one) for one in every(script, MOST)]
    return found[:MOST] or [(None, None)]


def _branches(call: Call) -> dict[int, tuple[ast.AST, str]]:
    return branches(call.around, call.node)


def _setup(script: Script, shared: _Shared, trainer: Call | None, arguments: Arguments | None) -> Setup:
    settings = arguments.settings if arguments is not None else None
    sft = settings if arguments is not None and arguments.sft else None
    optimizers, schedulers = _steps(script, shared, trainer)
    model, behind = _model(script, trainer, settings, optimizers)
    deepspeed, files = _deepspeed(script, arguments)
    loader = read_dataloader(script) if trainer is None else None
    names = [model.text("name")] if model is not None else []
    optimizer = read_optimizer(script, optimizers)
    if optimizer is not None and trainer is not None:
        put(optimizer, "trainer_scheduler", schedulers[0].method if schedulers else None, optimizer.place)
    return Setup(
        trainer=settings,
        sft=sft,
        accelerator=shared.accelerator,
        deepspeed=deepspeed,
        env=shared.env,
        model=model,
        peft=read_peft(script, behind, trainer),
        data=read_data(script, trainer, loader, sft),
        dataloader=loader_settings(loader),
        optimizer=optimizer,
        scheduler=read_scheduler(script, schedulers),
        eval=read_evaluation(script, trainer),
        processes=_forked(script),
        launcher="accelerate" if _forked(script) is not None else None,
        script=script,
        files=(script.file,),
        references=tuple(dict.fromkeys(name for name in [*files, *names] if name)),
    )


def _forked(script: Script) -> int | None:
    """Return the processes that the script starts itself, by accelerate's notebook_launcher."""
    counts = [call.keywords.get("num_processes") for call in script.named("notebook_launcher")]
    return counts[0] if len(counts) == 1 and isinstance(counts[0], int) and counts[0] > 0 else None


def _steps(script: Script, shared: _Shared, trainer: Call | None) -> tuple[list[Call], list[Call]]:
    """Return the calls that make optimizer and scheduler: those that a Trainer gets, or those of the script's loop."""
    made, schedules = shared.optimizers, shared.schedulers
    if trainer is None:
        return _last_of(made), _last_of(schedules)
    node = argument(trainer, "optimizers")
    pair = lineage(script, node, inside(trainer)).literals if node is not None else []
    parts = [(part, where) for one, where in pair if isinstance(one, ast.Tuple | ast.List) for part in one.elts]
    behind = [call for part, where in parts for call in lineage(script, part, where).calls]
    return [call for call in made if call in behind], [call for call in schedules if call in behind]


def _last_of(made: list[Call]) -> list[Call]:
    """Return the alternatives among calls: those of other branches, and of calls under one another's heads the last."""
    kept: list[Call] = []
    for call in made:
        kept = [one for one in kept if exclusive(_branches(one), _branches(call)) or one.target != call.target]
        kept.append(call)
    first = [call for call in kept if call.target == kept[0].target] if kept else []
    return first


def _model(
    script: Script, trainer: Call | None, settings: Settings | None, optimizers: list[Call]
) -> tuple[Settings | None, Lineage]:
    for node, around in _candidates(script, trainer, optimizers):
        model, behind = read_model(script, node, around)
        if isinstance(script.value(node, around), str) and settings is not None and trainer is not None:
            _from_string(script, trainer, settings, model)
        if trainer is None and (mode := training_mode(script, behind.names)) is not None:
            put(model, "training", mode[0], mode[1].place)
        if model.values or trainer is not None:
            return model, behind
    return None, Lineage()


def _candidates(script: Script, trainer: Call | None, optimizers: list[Call]) -> Iterator[tuple[ast.expr, Around]]:
    """Yield the expressions that may be the trained model, the surest first."""
    if trainer is not None:
        node = argument(trainer, "model", 0)
        made = argument(trainer, "model_init")
        function = script.functions.get(made.id) if isinstance(made, ast.Name) else None
        given = returns(script, function) if function is not None else []
        if len(given) == 1 and (node is None or script.value(node, inside(trainer)) is None):
            yield given[0]
        elif (known := node if node is not None else made) is not None:
            yield known, inside(trainer)
        return
    for call in script.named("deepspeed.initialize"):
        node = argument(call, "model", 1)
        if node is not None:
            yield node, inside(call)
    for call in optimizers:
        found = parameters_of(script, call)
        if found is not None:
            yield found
    for call in script.calls:
        if call.method in ("prepare", "get_peft_model") and call.node.args:
            for part in call.node.args:
                if any(is_model(script, end) for end in lineage(script, part, inside(call)).ends):
                    yield part, inside(call)
    loaded = [
        call for call in script.calls if call.method in ("from_pretrained", "from_config") and is_model(script, call)
    ]
    if len(loaded) == 1:
        yield loaded[0].node, loaded[0].around


def _from_string(script: Script, trainer: Call, settings: Settings, model: Settings) -> None:
    """Lay what `model_init_kwargs` says over a model that the Trainer loads itself."""
    for call in (trainer, *(one for one in script.calls if one.place == settings.place)):
        node = argument(call, "model_init_kwargs")
        if node is not None:
            with_keywords(script, model, node, inside(call))
            return
    model.open = model.open or settings.open


def _deepspeed(script: Script, arguments: Arguments | None) -> tuple[Settings | None, list[str]]:
    """Return DeepSpeed's configuration where the script holds it, and the files that it names."""
    nodes = []
    files: list[str] = []
    if arguments is not None and arguments.call is not None:
        for key in ("deepspeed", "fsdp_config", "accelerator_config"):
            node = argument(arguments.call, key)
            if node is not None:
                nodes.append((key, node, inside(arguments.call)))
        files += argument_files(script, arguments.call)
    nodes += [("deepspeed", node, around) for node, around in deepspeed_calls(script)]
    found: Settings | None = None
    for key, node, around in nodes:
        held, named = read_deepspeed(script, node, around)
        found = held if found is None and key == "deepspeed" else found
        files += named
    said = arguments.settings.text("deepspeed") if arguments is not None else ""
    return found, [*files, said]

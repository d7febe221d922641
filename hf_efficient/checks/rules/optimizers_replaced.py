"""Optimizers that something else takes the place of, or that hold the wrong parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.loop import loops
from hf_efficient.checks.own_trainer import built
from hf_efficient.finding import Finding, Place, error, warning
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup

KEPT = (
    "Adam",
    "AdamW",
    "AdamW32bit",
    "DeepSpeedCPUAdam",
    "Adagrad",
    "DeepSpeedCPUAdagrad",
    "DeepSpeedCPULion",
    "DummyOptim",
)
"""Classes that CPU offload keeps the mathematics of (accelerate 1.15, map_pytorch_optim_to_deepspeed)."""
KEPT_NAMES = ("adamw_torch", "adamw_torch_fused", "adagrad", "lion_32bit", "adamw_torch_xla", "adamw_torch_npu_fused")
OTHERS = (
    "SGD", "RMSprop", "Adafactor", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD", "Adadelta", "LBFGS", "Lion", "Lion8bit",
    "PagedLion", "PagedLion8bit", "AdamW8bit", "Adam8bit", "PagedAdamW", "PagedAdamW8bit", "PagedAdamW32bit", "SGD8bit",
    "LAMB", "LARS", "AdEMAMix", "AdEMAMix8bit", "Muon", "Sophia", "Adan", "RMSprop8bit", "Adagrad8bit",
)  # fmt: skip
"""Classes that it replaces by DeepSpeedCPUAdam; others are not known."""


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"}, seen="read source")
def offload_replaces_optimizer(
    setup: Setup, zero: Settings, optimizer: Settings = NOTHING, trainer: Settings = NOTHING
) -> Iterator[Finding]:
    """Find an optimizer that accelerate replaces by DeepSpeedCPUAdam, because DeepSpeed offloads its state.

    With offload_optimizer on, Accelerator.prepare maps whatever it is given (map_pytorch_optim_to_deepspeed): torch's
    AdamW to DeepSpeedCPUAdam, Adagrad and bitsandbytes' 32-bit Lion to their CPU versions, and everything else to
    DeepSpeedCPUAdam in Adam mode, with lr and weight_decay taken over and momentum and the rest lost. No word is said.
    `"zero_force_ds_cpu_optimizer": false` in a DeepSpeed JSON leaves the optimizer alone.
    """
    device = zero.get("offload_optimizer")
    kept = setup.deepspeed.get("zero_force_ds_cpu_optimizer", True) if setup.deepspeed is not None else True
    if device not in ("cpu", "nvme") or zero.said("optimizer") or kept is not True:
        return
    name, place = _asked(setup, optimizer, trainer)
    if name:
        yield error(
            f"{name} with offload_optimizer to {device}",
            why=f"accelerate replaces {name} by DeepSpeedCPUAdam in silence: only lr and weight_decay are taken over.",
            fix='Train with AdamW, drop the offload, or keep it by "zero_force_ds_cpu_optimizer": false in a DeepSpeed '
            "JSON (deepspeed_config_file; the launch YAML has no such key).",
            at=place,
        )


def _asked(setup: Setup, optimizer: Settings, trainer: Settings) -> tuple[str, Place]:
    """Return the optimizer that will be replaced, or an empty name."""
    kind = optimizer.text("class").rpartition(".")[2]
    if setup.trainer is None:
        return (kind, optimizer.place) if kind in OTHERS else ("", optimizer.place)
    optim = trainer.text("optim")
    replaced = trainer.said("optim") and optim and optim not in KEPT_NAMES and "." not in optim
    return (f"optim={optim!r}" if replaced else "", trainer.where("optim"))


@check({"transformers": ">=4.30"}, seen="read source")
def trainer_optimizers_under_fsdp(script: Script, fsdp: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find an optimizer handed to a Trainer that trains under FSDP.

    Trainer.__init__ raises RuntimeError: the optimizer holds parameters that sharding replaces.
    """
    for one in built(script):
        pair = next((word.value for word in one.call.node.keywords if word.arg == "optimizers"), None)
        if isinstance(pair, ast.Tuple) and any(ast.unparse(part) != "None" for part in pair.elts):
            yield error(
                f"{one.call.method}(optimizers=...) under FSDP",
                why="Passing optimizers is refused under FSDP: RuntimeError when the Trainer is made.",
                fix="Say it by optim and optim_args, pass optimizer_cls_and_kwargs=(cls, {...}), or override "
                "create_optimizer.",
                at=one.call.place,
            )


@check({"transformers": ">=5.0"}, seen="read source")
def optim_beside_own_optimizer(script: Script, trainer: Settings) -> Iterator[Finding]:
    """Find optim, learning_rate or weight_decay beside an optimizer of one's own.

    With optimizers=(optimizer, ...) the Trainer makes none, so that these fields act on nothing
    (Trainer.create_optimizer).
    """
    for one in built(script):
        pair = next((word.value for word in one.call.node.keywords if word.arg == "optimizers"), None)
        first = pair.elts[0] if isinstance(pair, ast.Tuple) and pair.elts else None
        made = script.made(dotted(first)) if first is not None else None
        rate = made.keywords.get("lr") if made is not None else None
        fields = [key for key in ("optim", "optim_args") if trainer.said(key)]
        if trainer.said("learning_rate") and isinstance(rate, float) and trainer.number("learning_rate") != rate:
            fields.append("learning_rate")
        if made is not None and fields:
            yield warning(
                f"{', '.join(f'{key}={trainer.get(key)}' for key in fields)} beside optimizers=({made.method}, ...)",
                why=f"The Trainer trains with the {made.method} that it was given and ignores these fields in silence.",
                fix=f"Say them to {made.method}, or leave optimizers out and let optim make the optimizer.",
                at=trainer.where(fields[0]),
            )


@check(seen="arithmetic")
def optimizer_of_an_older_model(script: Script) -> Iterator[Finding]:
    """Find an optimizer made of a model's parameters before the model gets new ones.

    get_peft_model adds its adapters, and from_pretrained makes another model: an optimizer made before holds the old
    parameters only, so the new ones never train. Under FSDP the same holds for accelerate.prepare, which maps them.
    """
    for optimizer in script.calls:
        model = _parameters_of(optimizer)
        if not model or not optimizer.target or optimizer.guards:
            continue
        for call in script.calls:
            adds = call.method == "get_peft_model" and bool(call.node.args) and dotted(call.node.args[0]) == model
            made = call.method == "from_pretrained" and call.target == model
            renews = made and _made_before(script, optimizer, model)
            later = call.node.lineno > (optimizer.node.end_lineno or 0) and call.function == optimizer.function
            if (adds or renews) and later and not call.guards and not _again(script, optimizer, call):
                yield error(
                    f"{optimizer.target} = {optimizer.method}({model}.parameters()) stands before {call.method}",
                    why="It holds the parameters that the model had then; those that come later are never updated.",
                    fix=f"Make {optimizer.target} after {call.method}.",
                    at=optimizer.place,
                )
                break


def _parameters_of(call: Call) -> str:
    """Return the model whose parameters() the call is given first."""
    first = (
        call.node.args[0] if call.node.args else next((w.value for w in call.node.keywords if w.arg == "params"), None)
    )
    takes = isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute) and first.func.attr == "parameters"
    optimizer = call.name.startswith(("torch.optim.", "bitsandbytes.", "transformers.")) or call.method.startswith(
        "Adam"
    )
    return dotted(first.func.value) if takes and optimizer else ""  # type: ignore[union-attr]


def _made_before(script: Script, optimizer: Call, model: str) -> bool:
    return any(call.target == model and call.node.lineno < optimizer.node.lineno for call in script.calls)


def _again(script: Script, optimizer: Call, call: Call) -> bool:
    """Say whether the optimizer is made anew after the call."""
    return any(
        one.target == optimizer.target and one.node.lineno > call.node.lineno and _parameters_of(one)
        for one in script.calls
    )


@check({"accelerate": ">=0.20"}, seen="read source")
def loader_not_prepared(script: Script, processes: int) -> Iterator[Finding]:
    """Find a loop over a DataLoader that accelerate did not prepare, in several processes.

    Accelerator.prepare gives each process its share of the batches; a plain DataLoader gives every process all of them,
    so that an epoch sees each row once per process.
    """
    if processes < 2 or not script.named("Accelerator") or "DistributedSampler" in script.source:
        return
    handed = {
        dotted(argument)
        for call in script.calls
        if call.method.startswith("prepare") or call.method == "windows"
        for argument in call.node.args
    }
    for loop in loops(script):
        source = loop.node.iter if isinstance(loop.node, ast.For) else None
        name = dotted(source) if isinstance(source, ast.Name) else ""
        made = script.made(name)
        if made is not None and made.method == "DataLoader" and name not in handed and handed:
            if loop.kind != "accelerator" or {"sampler", "batch_sampler"} & set(made.keywords) or made.open:
                continue
            yield warning(
                f"the loop runs over {name}, which accelerator.prepare was not given",
                why=f"Each of {processes} processes reads all batches: every row counts {processes} times an epoch.",
                fix=f"Pass {name} to accelerator.prepare.",
                at=made.place,
            )

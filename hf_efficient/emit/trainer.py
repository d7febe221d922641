"""Plan -> transformers.TrainingArguments, trl.SFTConfig or a class of yours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, overload

from hf_efficient.effective_batch import at_processes
from hf_efficient.emit.fields import complete, sft_complete, sft_remarks
from hf_efficient.emit.head import require_head
from hf_efficient.emit.here import require, training_machine, without_accelerator
from hf_efficient.emit.launcher import agree_with_launcher, cpu_author, launched_processes, take_launchers_words
from hf_efficient.emit.loader import unpin
from hf_efficient.emit.places import require_cards, require_offload_folders, require_zero_3_sees_all
from hf_efficient.emit.process import read_by, switched
from hf_efficient.emit.takeover import take_launchers_engine, take_your_engine
from hf_efficient.emit.warmup import refuse_a_share
from hf_efficient.emit.yours import needs_of_settings, refuse_half_an_optimizer, refuse_what_breaks, take_yours
from hf_efficient.plan import Plan, require_plan
from hf_efficient.renames import OPTIMIZERS, explain, modern
from hf_efficient.tricks import defaults
from hf_efficient.wording import unknown

if TYPE_CHECKING:
    from transformers import TrainingArguments

A = TypeVar("A", bound="TrainingArguments")


@overload
def training_arguments(
    plan: Plan, args_class: None = None, *, model: Any = None, **yours: Any
) -> TrainingArguments: ...
@overload
def training_arguments(plan: Plan, args_class: type[A], *, model: Any = None, **yours: Any) -> A: ...
def training_arguments(plan: Plan, args_class: Any = None, *, model: Any = None, **yours: Any) -> Any:
    """Build the arguments of `plan` and yours, which win. Build them before the model: ZeRO-3 shards while it loads.

    `args_class` is TrainingArguments, SFTConfig or any subclass; SFTConfig's own defaults for what a trick can set are
    put back to those of TrainingArguments, so that both classes train alike (at TRL's learning rate, unless you give
    one), and its `model_init_kwargs` load a model
    that SFTTrainer is given by name as the plan says (pass `model_init_kwargs=None` with a model of your own).
    `model`, a module or a model's class, is only looked at: a trick that is not made for its head is refused.

    Raises ValueError in one sentence for a field that the class has not, for needs of the plan that this machine does
    not meet, and for an effective batch that cannot be exact; Conflict when you and the plan cannot both be right.
    """
    args_class = args_class or _stock()
    if model is not None:
        require_plan(plan)
        require_head(plan, model)
    settled = settle(plan, args_class, yours)
    require_cards()
    require_offload_folders(settled)
    require_zero_3_sees_all(settled)
    for remark in sft_remarks(settled) if _is_sft(args_class) else ():
        warnings.warn(remark, stacklevel=2)
    with switched(settled):
        arguments = args_class(**settled["trainer"] | settled["sft"])
    read_by(arguments)
    if arguments.n_gpu > 1 and plan["loop"].get("effective_batch"):
        raise ValueError(
            f"One process drives {arguments.n_gpu} GPUs here, so the effective batch would be {arguments.n_gpu} times "
            "what the plan says. Start the script with `accelerate launch`, or show it one GPU: CUDA_VISIBLE_DEVICES=0."
        )
    return arguments


def settle(
    plan: Plan, args_class: type[TrainingArguments] | None = None, yours: Mapping[str, Any] | None = None
) -> Plan:
    """Return `plan` as it will be on this machine, under this launcher, with your values: what is about to be built.

    Raises as `training_arguments` does, and builds nothing.
    """
    require_plan(plan)
    args_class, yours = args_class or _stock(), modern(yours or {})
    _check_fields(args_class, yours)
    plan = agree_with_launcher(take_launchers_engine(take_your_engine(plan, yours)), "trainer")
    if yours.get("deepspeed"):
        yours = {**yours, "deepspeed": plan["deepspeed"]}
    settled = arguments_plan(plan, args_class, yours, processes=launched_processes())
    settled = agree_with_launcher(settled, "trainer")  # your own values too
    refuse_a_share(settled["trainer"].get("optim"), settled["trainer"].get("warmup_steps"))
    machine = without_accelerator(training_machine()) if settled["trainer"].get("use_cpu") else training_machine()
    refuse_half_an_optimizer(settled)
    require(settled, machine, besides=needs_of_settings(settled, "trainer"))
    if machine.accelerator:
        return settled
    settled = unpin(settled, "trainer", by=cpu_author())
    return settled.assume("trainer", {"use_cpu": True}, by=cpu_author())


def arguments_plan(
    plan: Plan, args_class: type[TrainingArguments], yours: Mapping[str, Any], *, processes: int
) -> Plan:
    """Return `plan` with your values and with all that `args_class` must be told, for any machine."""
    target = {field.name: "sft" if _is_extra(args_class, field.name) else "trainer" for field in fields(args_class)}
    refuse_what_breaks(plan, yours, sft=_is_sft(args_class))
    plan = take_yours(plan, "trainer", {key: value for key, value in yours.items() if target[key] == "trainer"})
    plan = take_yours(plan, "sft", {key: value for key, value in yours.items() if target[key] == "sft"})
    plan = complete(take_launchers_words(at_processes(plan, processes), "trainer"))
    if args_class is not _stock():
        plan = plan.assume("trainer", _silence(args_class), by="TrainingArguments' default")
    plan = sft_complete(plan) if _is_sft(args_class) else plan.drop("sft", [k for k in plan["sft"] if k not in yours])
    return plan.drop("sft", [key for key in plan["sft"] if key not in target])


def _silence(args_class: type[TrainingArguments]) -> dict[str, Any]:
    """Return the stock value of every field that a trick can set and that `args_class` gives another default."""
    knobs = {key for trick in defaults() for key in trick.trainer}
    stock = {field.name: field.default for field in fields(_stock())}
    # SFTConfig turns checkpointing on through the deprecated alias, which counts while the new name is unset.
    silence = {"activation_checkpointing": False} if "activation_checkpointing" in stock else {}
    for field in fields(args_class):
        default = stock.get(field.name, MISSING)
        if field.name in knobs and default is not MISSING and field.default != default:
            silence[field.name] = default
    return silence


def _check_fields(args_class: type[TrainingArguments], yours: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(args_class) if field.init]
    wrong = [
        str(explain(name) or unknown(f"field of {args_class.__name__}", name, known))
        for name in yours
        if name not in known
    ]
    optimizer = explain(str(yours.get("optim")), OPTIMIZERS)
    if wrong or optimizer:
        raise ValueError(" ".join(sentence for sentence in [*wrong, optimizer] if sentence))


def _is_sft(args_class: type[TrainingArguments]) -> bool:
    return any(base.__name__ == "SFTConfig" for base in args_class.__mro__)


def _is_extra(args_class: type[TrainingArguments], name: str) -> bool:
    return args_class is not _stock() and name not in {field.name for field in fields(_stock())}


def _stock() -> Any:
    from transformers import TrainingArguments

    return TrainingArguments

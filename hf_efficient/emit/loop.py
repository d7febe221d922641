"""Plan -> the objects of a hand-written loop: Accelerator, model, optimizer, loader, clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_efficient.effective_batch import at_processes
from hf_efficient.emit.accelerator import Call, accelerator_keywords, require_no_other_plan
from hf_efficient.emit.deepspeed import refuse_hidden_steps, tell_plugin
from hf_efficient.emit.engine_rules import STOCK, fit_engine
from hf_efficient.emit.fsdp import own_checkpointing, preparations, refuse_second_plugin
from hf_efficient.emit.here import require, training_machine
from hf_efficient.emit.launcher import (
    agree_with_launcher,
    cpu_author,
    launched_processes,
    launchers_engine,
    take_launchers_words,
    take_numbers,
)
from hf_efficient.emit.loader import drop_what_needs_workers, unpin
from hf_efficient.emit.model import add_adapter
from hf_efficient.emit.places import require_cards, require_offload_folders
from hf_efficient.emit.process import switched
from hf_efficient.emit.sampler import with_sampler
from hf_efficient.emit.takeover import take_launchers_engine, take_your_engine
from hf_efficient.emit.warmup import refuse_a_share
from hf_efficient.emit.yours import needs_of_settings, take_yours
from hf_efficient.plan import Conflict, Plan, require_plan
from hf_efficient.wording import unknown

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


def make_accelerator(plan: Plan, **yours: Any) -> Accelerator:
    """Build the Accelerator of `plan` and your keywords, which win, and set the plan's process switches.

    Build it before the model: under ZeRO-3 weights are sharded while they load. It never passes `cpu=True`, which
    drops DeepSpeed and FSDP in silence; without an accelerator torch finds none and the CPU is used.

    Raises ValueError for needs of the plan that this machine does not meet and for an effective batch that cannot be
    exact.
    """
    from accelerate import Accelerator

    settled = settle_loop(plan, yours)
    require(settled, training_machine(), besides=needs_of_settings(settled, "accelerator"))
    require_cards()
    require_offload_folders(settled)
    if yours.get("cpu") and {"DEEPSPEED", "FSDP"} & {settled.engine, launchers_engine()}:
        raise ValueError(
            "Accelerator(cpu=True) drops DeepSpeed and FSDP without a word: leave cpu out, or zero or fsdp."
        )
    require_no_other_plan(settled)
    keywords = accelerator_keywords(settled, launchers_engine())
    tell_plugin(keywords.get("deepspeed_plugin"), settled)
    with switched(settled):
        accelerator = Accelerator(
            **{key: call.build() if isinstance(call, Call) else call for key, call in keywords.items()}
        )
    _require_the_launch(accelerator, settled)
    return accelerator


def _require_the_launch(accelerator: Accelerator, settled: Plan) -> None:
    """Raise ValueError where Accelerate found other processes than were started, or took another engine."""
    found, engine = accelerator.num_processes, accelerator.distributed_type.value
    if found != launched_processes():
        instead = "take recipes/launch/ddp.yaml and set" if settled.engine == "DEEPSPEED" else "set"
        raise ValueError(
            f"The launcher started {launched_processes()} processes and Accelerate found {found}: each would train "
            f"alone. Without GPUs {instead} ACCELERATE_USE_CPU=true for the launcher."
        )
    if settled.engine not in ("NO", engine):
        trick = {"DEEPSPEED": "zero", "FSDP": "fsdp"}[settled.engine]
        raise ValueError(
            f"This plan trains with {settled.engine}, and Accelerate took {engine} without a word: "
            f"start one process per GPU with `accelerate launch`, or leave {trick} out."
        )


def settle_loop(plan: Plan, yours: Mapping[str, Any] | None = None) -> Plan:
    """Return `plan` as it will be under this launcher with your Accelerator keywords: accumulation computed."""
    from accelerate import Accelerator

    require_plan(plan)
    yours = yours or {}
    _check_keywords(Accelerator, yours)
    plan = take_launchers_engine(take_your_engine(plan, yours))
    refuse_second_plugin(plan, yours)
    refuse_hidden_steps(plan, yours)
    plan = take_yours(plan, "accelerator", yours)
    plan = agree_with_launcher(plan, "accelerator")
    plan = own_checkpointing(take_launchers_words(plan, "accelerator"), "accelerator")
    plan = fit_engine(plan, str(plan["optimizer"].get("name", STOCK)), door="loop")
    return at_processes(_loader_plan(plan), launched_processes(), "loop")


def prepare_model(plan: Plan, model: nn.Module) -> nn.Module:
    """Do to `model` what Accelerator has no keyword for, such as adapters or activation checkpointing, and return it.

    Call it before `accelerator.prepare`. Raises ValueError for needs of the plan that this machine does not meet.
    """
    plan = take_launchers_engine(plan)
    require(plan, training_machine())
    model = add_adapter(plan, model)
    if hasattr(model, "config"):
        # As Trainer does: nothing reads keys and values again, and layers recomputed by FSDP would append theirs twice.
        model.config.use_cache = False  # type: ignore[union-attr]
    for call in preparations(plan).values():
        call(model)
    return model


def make_optimizer(
    plan: Plan, model: nn.Module, *, lr: float = 5e-5, weight_decay: float = 0.0, **yours: Any
) -> torch.optim.Optimizer:
    """Build the optimizer that Trainer would build for the same plan; `lr` is the learning rate per update.

    Weight decay goes to the parameters that Trainer decays: neither biases nor norms. Without an optimizer trick
    it is Trainer's default, fused AdamW. `yours` are keywords of the optimizer's class and win.
    """
    from transformers import Trainer
    from transformers.training_args import OptimizerNames, ParallelMode

    keywords = {"name": "adamw_torch_fused"} | plan["optimizer"]
    warmup_steps = plan["loop"].get("warmup_steps", 0)
    refuse_a_share(keywords["name"], warmup_steps)
    arguments = SimpleNamespace(
        optim=OptimizerNames(keywords.pop("name")),
        optim_args=keywords.pop("args", None),
        optim_target_modules=keywords.pop("target_modules", None),
        learning_rate=lr,
        weight_decay=weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        warmup_steps=warmup_steps,
        parallel_mode=ParallelMode.NOT_PARALLEL,
        gradient_accumulation_steps=plan["accelerator"].get("gradient_accumulation_steps", 1),
    )
    make, stock = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    # Trainer's own method on what it reads of a Trainer: same groups, same exceptions, no second copy of the rules.
    trainer = SimpleNamespace(
        model=model,
        optimizer=None,
        args=arguments,
        optimizer_cls_and_kwargs=(make, {**stock, **keywords, **yours}),
        get_decay_parameter_names=lambda model: Trainer.get_decay_parameter_names(None, model),
    )
    optimizer: torch.optim.Optimizer = Trainer.create_optimizer(trainer)
    return optimizer


def dataloader_keywords(plan: Plan, **yours: Any) -> dict[str, Any]:
    """Return the keywords of torch's DataLoader: the plan's and yours, which win.

    Pass `dataset=` among yours, and `shuffle=True`: a plan that groups rows by length puts its sampler in the place of
    the latter. Without an accelerator there is no memory to pin, and pinning is left out.

    Raises ValueError when the plan groups rows and has no dataset to group.
    """
    from torch.utils.data import DataLoader

    _check_keywords(DataLoader, yours)
    effective, batch = plan["loop"].get("effective_batch"), plan["dataloader"].get("batch_size")
    if effective and yours.get("batch_size", batch) != batch:
        raise Conflict(
            f"You pass batch_size={yours['batch_size']}, and the accumulation for {effective} samples per update was "
            f"computed for {batch}: write batch_size({yours['batch_size']}, effective={effective}) in the plan instead."
        )
    plan = take_numbers(take_yours(plan, "dataloader", yours))
    settled = at_processes(_loader_plan(plan), launched_processes(), "loop")
    return with_sampler(settled, settled["dataloader"])


def clip(plan: Plan, accelerator: Accelerator, model: nn.Module) -> torch.Tensor | None:
    """Clip the gradients of one update by the plan's `max_grad_norm`; return the norm before clipping.

    Call it once per update, after the last backward. Without a limit in the plan nothing is clipped and None is
    returned. fp16's loss scale is divided out first; under DeepSpeed the engine clips and its norm is returned.
    """
    limit = plan["loop"].get("max_grad_norm")
    if not limit or limit < 0:  # as Trainer has it
        return None
    norm = accelerator.clip_grad_norm_(model.parameters(), limit)
    whole: torch.Tensor | None = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP's is a DTensor
    return whole


def _check_keywords(made: Callable[..., Any], yours: Mapping[str, Any]) -> None:
    known = signature(made).parameters
    for name in yours:
        if name not in known:
            raise unknown(f"keyword of {made.__name__}", name, known)


def _loader_plan(plan: Plan) -> Plan:
    plan = drop_what_needs_workers(plan, "dataloader")
    return plan if training_machine().accelerator else unpin(plan, "dataloader", by=cpu_author())

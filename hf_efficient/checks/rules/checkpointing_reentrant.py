"""The reentrant variant of checkpointing: what gets no gradient, what DDP refuses, what ZeRO-3 needs."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.checkpointing import asked, by_trainer
from hf_efficient.checks.rules.checkpointing_models import other_input
from hf_efficient.finding import Finding, Place, error, info
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def reentrant_checkpoint_of_frozen_inputs(setup: Setup, model: Settings, peft: Settings) -> Iterator[Finding]:
    """Find reentrant checkpointing of a model with adapters whose inputs need no gradient.

    torch's reentrant variant builds no graph where none of a layer's inputs requires a gradient, so adapters inside get
    none and stay as they were ("None of the inputs have requires_grad=True"). transformers makes the embeddings' output
    require one where the main input is input_ids (modeling_utils.py, activation_checkpointing_enable) and so saves text
    models; models of pixels or sound are not helped. PEFT does the same where checkpointing was on before
    get_peft_model, prepare_model_for_kbit_training and SFTTrainer always; use_reentrant=False needs none of it.
    """
    found = asked(setup)
    if found is None or found.reentrant is not True or setup.sft is not None or _helped(setup):
        return
    main = other_input(model) if peft.get("prepared_for_kbit") is None and peft.get("is_trainable") is not False else ""
    if main:
        named = model.text("class") or model.text("model_type")
        yield error(
            f"Reentrant checkpointing ({found.by}, use_reentrant=True) of {named} with adapters: its input is {main}",
            why="No input of the checkpointed layers requires a gradient, so the reentrant variant gives none to"
            " the adapters"
            " inside: they stay untrained, with one warning in the log.",
            fix='Set activation_checkpointing_kwargs={"use_reentrant": False} (the default of transformers 5), or call'
            " model.enable_input_require_grads() before training.",
            at=found.place,
        )


def _helped(setup: Setup) -> bool:
    """Does something make the inputs require gradients: the script, a trainer of TRL, PEFT's own preparation?"""
    script = setup.script
    if script is None:
        return False
    made = [call.place.line for call in script.named("get_peft_model")]
    enabled = script.named("activation_checkpointing_enable", "gradient_checkpointing_enable")
    before = any(call.place.line < max(made, default=0) for call in enabled)
    trl = any(call.name.startswith("trl.") for call in script.calls)
    return before or trl or bool(script.named("enable_input_require_grads"))


@check({"torch": ">=2.0"}, seen="ran on CPU")
def ddp_find_unused_with_reentrant_checkpoint(setup: Setup) -> Iterator[Finding]:
    """Find reentrant checkpointing under DDP that searches for unused parameters.

    The reentrant variant runs a backward pass within the backward pass, so DDP sees parameters ready twice and raises
    RuntimeError ("Expected to mark a variable ready only once", tried with torch 2.13 and gloo). Trainer turns the
    search off for checkpointed models of its own, but not for a PeftModel, which is no PreTrainedModel (trainer.py,
    create_accelerator_and_postprocess): with adapters of get_peft_model, ddp_find_unused_parameters left out means
    True. prepare_model_for_kbit_training turns reentrant checkpointing on unless it is told otherwise. A static graph
    (ddp_static_graph=True) is accepted.
    """
    found, searched = asked(setup), _searches(setup)
    if found is None or found.reentrant is not True or searched is None:
        return
    if setup.zero is not None or setup.fsdp is not None:
        return
    yield error(
        f"Reentrant checkpointing ({found.by}) under DDP with {searched[0]}",
        why='DDP raises "Expected to mark a variable ready only once" in the first backward pass:'
        " use_reentrant=True runs a backward"
        " pass inside it.",
        fix='Set activation_checkpointing_kwargs={"use_reentrant": False} (gradient_checkpointing_kwargs for'
        " prepare_model_for_kbit_training), or ddp_find_unused_parameters=False, or ddp_static_graph=True.",
        at=searched[1] if searched[1].file or searched[1].line else found.place,
    )


def _searches(setup: Setup) -> tuple[str, Place] | None:
    """Return what makes DDP search for unused parameters, or None where nothing is known to."""
    trainer, key, script = setup.trainer, "ddp_find_unused_parameters", setup.script
    if trainer is not None:
        if not (setup.processes or 0) > 1 or not trainer.off("ddp_static_graph"):
            return None
        if trainer.on(key):
            return f"{key}=True", trainer.where(key)
        wrapped = setup.peft is not None and not (script is not None and script.named("add_adapter"))
        if wrapped and trainer.get(key) is None:
            return f"{key} left out, which means True for a PeftModel", trainer.place
        return None
    for call in script.named("DistributedDataParallel", "DDP", "DistributedDataParallelKwargs") if script else []:
        if call.keywords.get("find_unused_parameters") is True and not call.keywords.get("static_graph", False):
            return "find_unused_parameters=True", call.place
    return None


@check({"deepspeed": "<0.19.3"}, seen="read source")
def zero3_checkpoint_of_frozen_parameters(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find non-reentrant checkpointing of frozen parameters under ZeRO-3 of a DeepSpeed without its fix.

    While a layer is recomputed in the backward pass, ZeRO-3 gathers its parameters again; trainable ones are released
    by their gradient hooks, frozen ones were not, so a run with adapters fails or fills the card. DeepSpeed 0.19.3 is
    the first release that notes them for release (runtime/zero/partitioned_param_coordinator.py,
    update_recompute_parameters; 0.19.2 has no such thing). The reentrant variant was not affected. SFTTrainer forces
    use_reentrant=True in this combination.
    """
    found = asked(setup)
    frozen = setup.peft is not None or (setup.model or NOTHING).on("frozen")
    if (
        found is None
        or found.reentrant is not False
        or zero.get("stage") not in (3,)
        or not frozen
        or setup.sft is not None
    ):
        return
    yield error(
        f"Non-reentrant checkpointing ({found.by}, use_reentrant=False) of frozen parameters under ZeRO stage 3",
        why="DeepSpeed before 0.19.3 does not release frozen parameters that are gathered while a layer is recomputed.",
        fix='Upgrade to deepspeed>=0.19.3, or set activation_checkpointing_kwargs={"use_reentrant": True}.',
        at=found.place,
    )


@check({"trl": ">=1.0"}, seen="read source")
def trl_forces_reentrant(setup: Setup, zero: Settings, sft: Settings) -> Iterator[Finding]:
    """Find use_reentrant=False that SFTTrainer overrules under ZeRO-3 with adapters.

    It sets use_reentrant=True there and logs a warning (trl 1.16, trainer/sft_trainer.py), because older releases of
    DeepSpeed did not release frozen parameters in a recomputation.
    """
    found = by_trainer(setup)
    if found is not None and found.reentrant is False and zero.get("stage") == 3 and setup.peft is not None:
        yield info(
            f"{found.by} with use_reentrant=False, adapters and ZeRO stage 3 under SFTTrainer",
            why="TRL forces use_reentrant=True in this combination, whatever the arguments say.",
            fix="Nothing is needed; leave use_reentrant out to keep the log quiet.",
            at=found.place if found.place.line else sft.place,
        )

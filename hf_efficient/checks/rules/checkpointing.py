"""Activation checkpointing as the arguments ask for it: names, keywords, engines and machines it does not go with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.checkpointing_models import attribute
from hf_efficient.checks.rules.precision_places import without_gpu
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

NAMES = ("activation_checkpointing", "gradient_checkpointing")
OWN = ("every_n_layers", "offload", "selective")
"""Keywords that Trainer and TRL take out before the rest goes to torch.utils.checkpoint."""


class Asked(NamedTuple):
    """Checkpointing that is on: by what, where, and whether it is the reentrant variant (UNKNOWN: cannot be known)."""

    by: str
    place: Place
    reentrant: Any


def key_of(trainer: Settings, ending: str = "") -> str:
    """Return the name that counts: the new one where it is set, else the old one."""
    new = f"{NAMES[0]}{ending}"
    said = trainer.said(new) and trainer.get(new) is not None
    old = trainer.said(f"{NAMES[1]}{ending}") or trainer.get(f"{NAMES[1]}{ending}") is not None
    return new if said or not old else f"{NAMES[1]}{ending}"


def keywords(trainer: Settings) -> Any:
    """Return the keywords for checkpointing as a mapping, JSON text included; UNKNOWN where they cannot be known."""
    value = trainer.get(key_of(trainer, "_kwargs"))
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return UNKNOWN
    return {} if value is None else value if isinstance(value, dict) else UNKNOWN


def reentrant(said: Any) -> Any:
    """Return which variant these keywords select in transformers 5: any keyword without use_reentrant, the old one."""
    if not isinstance(said, dict):
        return UNKNOWN
    rest = {key: value for key, value in said.items() if key not in OWN}
    value = rest.get("use_reentrant", bool(rest))
    return value if value is UNKNOWN else value is None or bool(value)


def by_trainer(setup: Setup) -> Asked | None:
    """Return the checkpointing that the training arguments turn on, or None where they are not known to."""
    trainer = setup.trainer or NOTHING
    key = key_of(trainer)
    if not trainer.on(key):
        return None
    place = trainer.where(f"{key}_kwargs") if trainer.said(f"{key}_kwargs") else trainer.where(key)
    return Asked(f"{key}=True", place, reentrant(keywords(trainer)))


def asked(setup: Setup) -> Asked | None:
    """Return the checkpointing of the run: of the arguments, which win, else of the script or of PEFT's preparation."""
    trainer, model, peft = setup.trainer or NOTHING, setup.model or NOTHING, setup.peft or NOTHING
    found = by_trainer(setup)
    if found is not None or not trainer.knows(key_of(trainer)):
        return found
    if peft.on("prepared_for_kbit") and peft.get("use_gradient_checkpointing", True) is True:
        said = peft.get("gradient_checkpointing_kwargs") if peft.said("gradient_checkpointing_kwargs") else {}
        said = {} if said is None else said
        value = said.get("use_reentrant", True) if isinstance(said, dict) else UNKNOWN
        return Asked("prepare_model_for_kbit_training", peft.where("prepared_for_kbit"), value)
    if model.on("activation_checkpointing"):
        value = model.get("use_reentrant") if model.said("use_reentrant") else False
        return Asked("activation_checkpointing_enable", model.where("activation_checkpointing"), value)
    return None


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def checkpointing_keywords_without_use_reentrant(setup: Setup) -> Iterator[Finding]:
    """Find keywords for checkpointing that leave use_reentrant out, which selects the reentrant variant.

    Without any keywords transformers 5 passes use_reentrant=False. With some, it passes just those to
    torch.utils.checkpoint, whose own default is still the reentrant variant (modeling_utils.py,
    activation_checkpointing_enable; torch 2.13 warns). That one gives no gradient to layers whose inputs need none,
    and fails under DDP's search for unused parameters. every_n_layers and offload do not count: Trainer takes them
    out first.
    """
    trainer, found = setup.trainer or NOTHING, by_trainer(setup)
    said = keywords(trainer)
    if found is None or found.reentrant is not True or not isinstance(said, dict) or "use_reentrant" in said:
        return
    rest = ", ".join(str(key) for key in said if key not in OWN)
    yield warning(
        f"{key_of(trainer, '_kwargs')} gives {rest} without use_reentrant",
        why="That selects reentrant checkpointing in silence, where no keywords at all would mean use_reentrant=False.",
        fix=f'Add "use_reentrant": False to {key_of(trainer, "_kwargs")}.',
        at=found.place,
    )


@check({"transformers": ">=5.23"}, seen="ran on CPU")
def checkpointing_named_twice(trainer: Settings) -> Iterator[Finding]:
    """Find both names of checkpointing with different values.

    gradient_checkpointing is a deprecated alias of activation_checkpointing since transformers 5.23 and is read only
    where the new name is not set (training_args.py, __post_init__); the same holds for the two _kwargs. The old value
    has no effect, and nothing says so.
    """
    for ending in ("", "_kwargs"):
        new, old = (f"{name}{ending}" for name in NAMES)
        both = all(trainer.said(key) and trainer.knows(key) and trainer.get(key) is not None for key in (new, old))
        if both and trainer.get(new) != trainer.get(old):
            yield warning(
                f"{new}={trainer.get(new)} and {old}={trainer.get(old)}",
                why=f"{old} is a deprecated alias and is ignored in silence where {new} is set.",
                fix=f"Remove {old} and keep {new}.",
                at=trainer.where(old),
            )


@check({"transformers": ">=5.0"}, seen="read source")
def checkpointing_by_trainer_and_fsdp(fsdp: Settings, trainer: Settings, setup: Setup) -> Iterator[Finding]:
    """Find checkpointing asked of the Trainer and of FSDP at once.

    Trainer raises ValueError where FSDP's own activation_checkpointing (fsdp_activation_checkpointing of accelerate)
    and the training argument are both on (trainer.py, create_accelerator_and_postprocess). FSDP's is the better one:
    the argument's gathers the weights once more in the backward pass. SFTConfig and its kin turn the argument on by
    themselves, so it must be turned off there.
    """
    found = by_trainer(setup)
    if found is None:
        return
    default = not trainer.said(key_of(trainer))
    if fsdp.on("activation_checkpointing") and fsdp.text("activation_checkpointing").lower() != "false":
        yield error(
            f"FSDP's activation_checkpointing and {found.by}{', the default of this class,' if default else ''}"
            f" are both on",
            why="Trainer raises ValueError when it is made: they cannot both be True.",
            fix="Keep fsdp_activation_checkpointing: true and say activation_checkpointing=False"
            " (gradient_checkpointing=False)"
            " in the arguments.",
            at=fsdp.where("activation_checkpointing"),
        )
    elif fsdp.knows("activation_checkpointing") and not fsdp.open:
        yield info(
            f"{found.by} under FSDP",
            why="Each checkpointed layer gathers its weights once more in the backward pass; FSDP's own"
            " checkpointing does not.",
            fix="Use activation_checkpointing in fsdp_config (fsdp_activation_checkpointing: true) and turn the"
            " argument off.",
            at=found.place,
        )


@check({"transformers": ">=5.23"}, seen="ran on CPU")
def checkpoint_offload_without_gpu(setup: Setup) -> Iterator[Finding]:
    """Find offload of checkpointed activations in a run without a GPU.

    {"offload": True} keeps them in pinned host memory (modeling_utils.py, save_on_cpu with pin_memory=True); pinning
    needs an accelerator, so the first forward pass raises.
    """
    trainer, found = setup.trainer or NOTHING, by_trainer(setup)
    said = keywords(trainer)
    if found is not None and isinstance(said, dict) and said.get("offload") is True and without_gpu(setup):
        yield error(
            f"offload in {key_of(trainer, '_kwargs')} on a machine without a GPU, or with use_cpu=True",
            why='The first step raises: "pin_memory=True requires a CUDA or other accelerator backend".',
            fix="Leave offload out here; it moves activations from the GPU to the host, and there is no GPU.",
            at=found.place,
        )


@check({"transformers": ">=5.0"}, seen="read source")
def checkpointing_not_supported(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find checkpointing asked of a model class that cannot do it.

    supports_gradient_checkpointing is False for PreTrainedModel and for classes that do not set it;
    activation_checkpointing_enable raises ValueError for them (modeling_utils.py), when train() begins. Read from the
    installed class; a class that is not found there says nothing.
    """
    found = asked(setup)
    if found is None or found.by.startswith("prepare") or attribute(
        model, "supports_gradient_checkpointing", otherwise=False
    ) is not False:  # fmt: skip
        return
    named = model.text("class") or model.text("architecture") or model.text("model_type")
    yield error(
        f"{found.by} with {named}, which does not support activation checkpointing",
        why="transformers raises ValueError when train() begins: its supports_gradient_checkpointing is False.",
        fix="Leave activation_checkpointing (gradient_checkpointing) out for this model; a smaller micro-batch"
        " with more"
        " gradient_accumulation_steps saves activations too.",
        at=found.place,
    )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def cache_with_checkpointing(setup: Setup) -> Iterator[Finding]:
    """Find use_cache=True beside checkpointing.

    Each checkpointed layer sets use_cache=False for itself in training and says so once in the log
    (modeling_layers.py). TrainingArguments(use_cache=True) writes the flag into the model's configuration; its
    default is False.
    """
    found, trainer = asked(setup), setup.trainer or NOTHING
    if found is not None and trainer.on("use_cache"):
        yield info(
            f"use_cache=True with {found.by}",
            why="A key-value cache and checkpointing exclude each other: transformers drops the cache in training.",
            fix="Leave use_cache at False for training; generate() turns it on for itself.",
            at=trainer.where("use_cache"),
        )

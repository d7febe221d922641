"""What a run asks of its model's class that it cannot do: checkpointing, attention kernels, tied weights, targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.doctor.probe_answer import Answer, NotProbedError
from hf_efficient.doctor.probe_steps import Step, apply, lora_fields, steps
from hf_efficient.doctor.probe_subject import Subject
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.settings import NOTHING
from hf_efficient.wording import one_sentence

KERNELS = {"flash_attention_2": "_supports_flash_attn", "flash_attention_3": "_supports_flash_attn",
           "flex_attention": "_supports_flex_attn", "sdpa": "_supports_sdpa"}  # fmt: skip


def support(subject: Subject) -> Iterator[Answer]:
    """Yield what the class of the model does not support, and what an adapter unties or cannot find."""
    model: Any = subject.tiny()
    yield from map(Answer, _attention(subject, model))
    if any(step.what == "checkpointing" for step in steps(subject.setup)):
        fault = not model.supports_gradient_checkpointing
        yield Answer(_no_checkpointing(subject) if fault else None, "support", fault)
    if subject.setup.peft is not None:
        yield from map(Answer, _adapter(subject, model))


def _attention(subject: Subject, model: Any) -> Iterator[Finding]:
    settings = subject.setup.model or NOTHING
    asked = settings.text("attn_implementation")
    if asked not in KERNELS or getattr(model, KERNELS[asked], False):
        return
    others = [name for name, flag in KERNELS.items() if getattr(model, flag, False)]
    yield error(
        f"{subject.head} does not support attn_implementation={asked!r}",
        why="from_pretrained raises ValueError for a kernel that the class has not been written for.",
        fix=f"Leave attn_implementation out, or use {' or '.join([*map(repr, others), repr('eager')])}.",
        at=settings.where("attn_implementation"),
    ).coded("probe-attention")


def _no_checkpointing(subject: Subject) -> Finding:
    trainer = subject.setup.trainer or NOTHING
    return error(
        f"{subject.head} does not support activation checkpointing",
        why="activation_checkpointing_enable raises ValueError for this class when the training starts.",
        fix="Remove activation_checkpointing (gradient_checkpointing) for this model.",
        at=trainer.where(
            "activation_checkpointing" if "activation_checkpointing" in trainer else "gradient_checkpointing"
        ),
    ).coded("probe-checkpointing-support")


def _adapter(subject: Subject, model: Any) -> Iterator[Finding]:
    """Yield an adapter that finds no layer, and a tied weight that it unties."""
    peft, fields = subject.setup.peft or NOTHING, lora_fields(subject.setup)
    tied = _tied(model)
    try:
        adapted = apply(model, Step("peft"), subject.setup)
    except ValueError as problem:
        targets = fields.get("target_modules")
        numbered = isinstance(targets, str) or any(part.isdigit() for t in targets or () for part in str(t).split("."))
        if numbered or "arget" not in str(problem):
            raise NotProbedError(one_sentence(problem)[:300]) from None
        yield error(
            f"No layer of {subject.head} is called {', '.join(map(str, targets or ())) or 'as target_modules says'}: "
            "the adapter cannot be attached",
            why=f"get_peft_model raises ValueError: {one_sentence(problem)[:200]}",
            fix=f"Use the class's own names in target_modules, such as {_linear(model)}, or 'all-linear'.",
            at=peft.where("target_modules"),
        ).coded("probe-adapter-targets")
        return
    if tied and not _tied(adapted.get_base_model()):
        yield warning(
            f"Probed on {subject.said}: its input and output embeddings are tied, and the adapter trains a copy of one",
            why="modules_to_save (or target_modules) names one of two weights that are one tensor: what is trained "
            "there does not reach the other, and merging the adapter unties them.",
            fix="Set ensure_weight_tying=True in LoraConfig, or name both, or leave embeddings out of modules_to_save.",
            at=peft.where("modules_to_save"),
        ).coded("probe-untied-weights")


def _tied(model: Any) -> bool:
    """Say whether input and output embeddings share the weight that is computed with."""
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    weights = [_weight(end) for end in ends if end is not None]
    return len(weights) == 2 and weights[0] is weights[1]


def _weight(module: Any) -> Any:
    saved = getattr(module, "modules_to_save", None)
    if saved is not None and len(saved):
        module = saved[next(iter(saved))]
    return getattr(module, "weight", None)


def _linear(model: Any) -> str:
    """Return the names of the linear layers inside the model."""
    from torch import nn

    names = [name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    return ", ".join(list(dict.fromkeys(name for name in names if not name.isdigit()))[:6])

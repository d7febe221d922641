"""One forward and backward of the tiny model as the run does it: who gets no gradient, and is anything recomputed?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hf_efficient.doctor.probe_answer import Answer, some
from hf_efficient.doctor.probe_steps import CHECKPOINTING, Step, apply, steps
from hf_efficient.doctor.probe_subject import Subject
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import one_sentence

WHERE = {
    "reentrant": "use_reentrant=False (activation_checkpointing_kwargs={'use_reentrant': False}), or "
    "model.enable_input_require_grads() before training where the model has token embeddings",
}


@dataclass(frozen=True)
class Seen:
    """What one backward pass showed."""

    without: tuple[str, ...]
    """Trainable parameters without a gradient."""
    trained: int
    recomputed: int
    """Layers that were computed again in the backward pass."""
    flagged: int
    """Modules that are told to checkpoint."""
    asleep: tuple[str, ...]
    """Dropouts that drop nothing, because they evaluate."""
    failed: str = ""


def gradients(subject: Subject) -> Iterator[Answer]:
    """Yield who gets no gradient, whether checkpointing is in effect, and which dropouts are in eval mode."""
    setup = subject.setup
    todo = [step for step in steps(setup) if step.what != "cast"]
    training = _trains(setup)
    seen = _seen(subject, todo, training=training)
    asked = [step for step in todo if step.what == "checkpointing"]
    at = _place(setup)
    if not training and seen.asleep:
        yield Answer(_asleep(subject, seen, at))
    whole = not seen.without and not seen.failed
    if asked and (whole or seen.recomputed or not training):
        yield _checkpointing(subject, seen, training=training, at=at)
    if whole:
        yield Answer(_all(subject, seen, at), "gradients", False)
        return
    plain = _seen(subject, [Step(s.what, _not_reentrant(s)) for s in todo], training=training) if asked else seen
    lost = [name for name in seen.without if name not in plain.without]
    if lost or (seen.failed and not plain.failed):
        yield Answer(_reentrant(subject, seen, lost, at), "gradients", True)
    if plain.failed:
        yield Answer(_no_backward(subject, plain, at))
    elif plain.without:
        yield Answer(_never(subject, plain, at))


def _not_reentrant(step: Step) -> Any:
    return {**(step.value or {}), "use_reentrant": False} if step.what == "checkpointing" else step.value


def _seen(subject: Subject, todo: list[Step], *, training: bool) -> Seen:
    """Run one forward and backward and return what it showed."""
    model: Any = subject.tiny()
    for step in todo:
        model = apply(model, step, subject.setup)
    model.train(training)
    calls: dict[int, int] = {}
    phase = {"backward": False}
    flagged = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    layers = [layer for m in flagged for layer in m.modules() if not list(layer.children())]

    def count(module: Any, *_: Any) -> None:
        if phase["backward"]:
            calls[id(module)] = calls.get(id(module), 0) + 1

    handles = [layer.register_forward_pre_hook(count) for layer in {id(one): one for one in layers}.values()]
    failed = ""
    try:
        loss = model(**subject.batch(model)).loss
        phase["backward"] = True
        loss.backward()
    except RuntimeError as problem:
        if "does not require grad" not in str(problem):
            raise
        failed = one_sentence(problem)[:200]
    finally:
        for handle in handles:
            handle.remove()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    without = tuple(name for name, p in trained.items() if p.grad is None)
    return Seen(without, len(trained), len(calls), len(flagged), tuple(_asleep_in(model)), failed)


def _asleep_in(model: Any) -> Iterator[str]:
    for name, module in model.named_modules():
        if "Dropout" in type(module).__name__ and getattr(module, "p", 0.0) > 0 and not module.training:
            yield name


def _trains(setup: Setup) -> bool:
    """Say whether the model is in training mode while it trains: Trainer sees to that, a loop of one's own must."""
    if setup.trainer is not None:
        return True
    model = setup.model or NOTHING
    if model.said("training") and model.knows("training"):
        return model.on("training")
    return setup.script is None or _mode(setup.script)


def _mode(script: Script) -> bool:
    """Say whether the last train() or eval() before the first backward is no eval(), nor is one undone in the loop."""
    back = next((call for call in script.calls if call.method == "backward"), None)
    if back is None:
        return True
    modes = [c for c in script.calls if c.method in ("train", "eval") and c.function == back.function and c.receiver]
    if any(call.guards for call in modes) or any(call.loops for call in modes if call.method == "train"):
        return True
    before = [call.method for call in modes if call.place.line <= back.place.line]
    return not before or before[-1] == "train"


def _place(setup: Setup) -> Place:
    trainer, script = setup.trainer or NOTHING, setup.script
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if trainer.on(name):
            return trainer.where(f"{name}_kwargs") if trainer.said(f"{name}_kwargs") else trainer.where(name)
    calls = script.named(*CHECKPOINTING) if script is not None else []
    owners = (setup.peft, setup.trainer, setup.model)
    return calls[0].place if calls else next((one.place for one in owners if one is not None), Place())


def _asleep(subject: Subject, seen: Seen, at: Place) -> Finding:
    return warning(
        f"Probed on {subject.said}: {len(seen.asleep)} dropouts are in eval mode while it trains: {some(seen.asleep)}",
        why="from_pretrained returns the model in eval mode and a loop of one's own has to change that: no dropout is "
        "in effect, and neither is activation checkpointing.",
        fix="Call model.train() before the loop, and again after each evaluation.",
        at=at,
    ).coded("probe-eval-mode")


def _checkpointing(subject: Subject, seen: Seen, *, training: bool, at: Place) -> Answer:
    if seen.recomputed:
        return Answer(
            info(
                f"Probed: fine. Activation checkpointing is in effect in {subject.said} in training mode: "
                f"{seen.flagged} modules have it, and their layers are computed again in the backward pass",
                why="Their activations are not kept, which is what it is for.",
                fix="Nothing has to be changed.",
                at=at,
            ).coded("probe-checkpointing"),
            "checkpointing",
            # in a loop of one's own, that it is in training mode is only read
            None if subject.setup.trainer is None else False,
        )
    why = "training is False" if not training else "none of its layers honours the flag"
    return Answer(
        warning(
            f"Probed on {subject.said}: activation checkpointing is turned on and nothing is recomputed, because {why}",
            why=f"{seen.flagged} modules have gradient_checkpointing=True, but a layer in eval mode ignores it: all "
            "activations stay in memory.",
            fix="Call model.train() before the training loop (set the dropouts to 0 if it should act as in eval mode)."
            if not training
            else "Leave activation checkpointing off for this class, or choose another way to save memory.",
            at=at,
        ).coded("probe-checkpointing"),
        "checkpointing",
        True,
    )


def _all(subject: Subject, seen: Seen, at: Place) -> Finding:
    return info(
        f"Probed: fine. Each of the {seen.trained} trainable parameters of {subject.said} gets a gradient",
        why="Nothing that should be trained is cut off.",
        fix="Nothing has to be changed.",
        at=at,
    ).coded("probe-gradients")


def _reentrant(subject: Subject, seen: Seen, lost: list[str], at: Place) -> Finding:
    who = f"{len(lost)} of {seen.trained} trainable parameters get no gradient: {some(lost)}"
    return error(
        f"Probed on {subject.said}: with reentrant activation checkpointing "
        f"{f'the backward fails ({seen.failed})' if seen.failed else who}",
        why="The reentrant variant cuts a layer off when none of its inputs requires a gradient, as behind frozen "
        "embeddings; with use_reentrant=False the same backward reaches them.",
        fix=f"Use {WHERE['reentrant']}.",
        at=at,
    ).coded("probe-gradients")


def _no_backward(subject: Subject, seen: Seen, at: Place) -> Finding:
    return error(
        f"Probed on {subject.said}: the loss has no gradient at all ({seen.failed})",
        why="Nothing that the loss depends on is trainable, so loss.backward() raises.",
        fix="Check target_modules and modules_to_save, or what is frozen.",
        at=at,
    ).coded("probe-no-backward")


def _never(subject: Subject, seen: Seen, at: Place) -> Finding:
    setup = subject.setup
    several = (setup.processes or 1) > 1 and setup.zero is None and setup.fsdp is None
    level = warning if several and not (setup.trainer or NOTHING).on("ddp_find_unused_parameters") else info
    return level(
        f"Probed on {subject.said}: {len(seen.without)} of {seen.trained} trainable parameters get no gradient, "
        f"whatever the settings: {some(seen.without)}",
        why="The loss does not depend on them: they are never trained"
        + (", and DDP stops at the second step for parameters that it waits for." if several else "."),
        fix="Freeze them (requires_grad_(False)), or under DDP set ddp_find_unused_parameters=True "
        "(DistributedDataParallelKwargs(find_unused_parameters=True) in a loop of one's own).",
        at=at,
    ).coded("probe-unused-parameters")

"""The events of a step -> what lives at each moment, by part, and what the highest moment is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hf_efficient.memory.record import Event
from hf_efficient.memory.results import GIB, PARTS, Timeline

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
LOGITS_RULE = 0.25
"""Share of what passes at the peak from which on the logits give it its name."""
AGAIN = ("recompute", "backward")


class Happening(NamedTuple):
    """An event, and the layer that computes then: its number from 0, and of how many; -1 between the layers."""

    event: Event
    layer: int
    layers: int


def timeline(happenings: Sequence[Happening], standing: Mapping[str, int], vocabulary: int | None) -> Timeline:
    """Return the timeline of a step whose `standing` bytes, by part, are there all the time.

    `vocabulary`: the last dimension of logits. A storage of the forward pass that is there after it is an activation.
    """
    part = _parts([h.event for h in happenings], vocabulary)
    live = {name: standing.get(name, 0) for name in PARTS}
    columns: dict[str, list[int]] = {name: [value] for name, value in live.items()}
    phases, moments = ["forward"], [0]
    for place, happening in enumerate(happenings):
        event = happening.event
        live[part[event.key]] += event.size
        if event.size >= 0:
            for name in PARTS:
                columns[name].append(live[name])
            phases.append(event.phase)
            moments.append(place)
    totals = [sum(column) for column in zip(*columns.values(), strict=True)]
    peak = max(range(len(totals)), key=totals.__getitem__)
    made = Timeline(parts=columns, phases=phases, peak=peak, label="")
    return Timeline(parts=columns, phases=phases, peak=peak, label=_label(made, happenings, moments[peak], part))


def _parts(events: Sequence[Event], vocabulary: int | None) -> dict[int, str]:
    """Return the part of each storage."""
    gone = {event.key: event.phase for event in events if event.size < 0}
    parts = {}
    for event in events:
        if event.size < 0:
            continue
        if event.role == "gradient":
            parts[event.key] = "gradients"
        elif event.role == "gathered":
            parts[event.key] = "weights"
        elif vocabulary is not None and len(event.shape) > 1 and event.shape[-1] == vocabulary:
            parts[event.key] = "logits"
        elif event.phase in ("forward", "recompute") and gone.get(event.key) != event.phase:
            parts[event.key] = "activations"
        else:
            parts[event.key] = "temporary"
    return parts


def _label(made: Timeline, happenings: Sequence[Happening], place: int, part: Mapping[int, str]) -> str:
    phase = made.phases[made.peak]
    if phase in ("clipping", "optimizer"):
        return {"clipping": "gradient clipping", "optimizer": "the optimizer step"}[phase]
    here = {name: made.parts[name][made.peak] for name in ("activations", "logits", "temporary")}
    if here["logits"] >= LOGITS_RULE * max(1, sum(here.values())):
        return f"the {_widest(happenings, place, part)} logits of the loss"
    if not happenings:
        return "the weights"
    at = happenings[place]
    layer = f"layer {at.layer + 1} of {at.layers}" if at.layer >= 0 else ""
    if phase == "recompute":
        return f"{layer or 'a layer'}, computed again for the backward pass"
    if layer:
        return f"the {phase} pass of {layer}"
    return (
        "the activations of all layers, at the loss" if here["activations"] > here["temporary"] else f"the {phase} pass"
    )


def _widest(happenings: Sequence[Happening], place: int, part: Mapping[int, str]) -> str:
    """Return the dtype of the largest logits alive at an event."""
    alive: dict[int, Event] = {}
    for happening in happenings[: place + 1]:
        event = happening.event
        if part[event.key] == "logits":
            if event.size < 0:
                alive.pop(event.key, None)
            else:
                alive[event.key] = event
    dtype = max(alive.values(), key=lambda event: event.size).dtype if alive else ""
    return NAMES.get(dtype, dtype)


def profile(made: Timeline) -> dict[str, dict[str, float]]:
    """Return what lives at the highest moment of each phase: phase -> part -> GiB."""
    best: dict[str, tuple[int, int]] = {}
    for place, (phase, total) in enumerate(zip(made.phases, made.live(), strict=True)):
        name = "backward" if phase in AGAIN else phase
        if total > best.get(name, (-1, 0))[0]:
            best[name] = total, place
    return {phase: {part: made.parts[part][place] / GIB for part in PARTS} for phase, (_, place) in best.items()}


def moments(made: Timeline) -> dict[str, float]:
    """Return the highest GiB of each phase; what is computed again counts as backward."""
    return {phase: sum(parts.values()) for phase, parts in profile(made).items()}

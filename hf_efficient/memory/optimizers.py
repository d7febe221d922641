"""What one optimizer step takes: its state, and what clipping and the update make in passing."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory import low_bit
from hf_efficient.memory.costs import tensors_in
from hf_efficient.memory.real_optimizers import REAL, Kind, without_data
from hf_efficient.memory.record import Event, Recorder, rounded
from hf_efficient.memory.weights import Weight
from hf_efficient.wording import listed, unknown

NOT_MODELLED = {
    **dict.fromkeys(
        ("lomo", "adalomo", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise",
         "apollo_adamw_layerwise"),
        "it updates each weight inside the backward pass and lets its gradient go",
    ),
    "galore_adamw_8bit": "its quantisation runs on CUDA alone",
    **dict.fromkeys(
        ("grokadamw", "stable_adamw", "adamw_anyprecision", "adamw_torch_xla", "adamw_torch_npu_fused"),
        "its package is none of those that were looked at",
    ),
}  # fmt: skip
"""Name -> why not."""
NAMES = (*REAL, *low_bit.BITSANDBYTES, *low_bit.TORCHAO)
"""Every `optim` of transformers whose memory is known."""
CHUNK = 65_536
"""Elements whose squares one block of threads sums: kChunkSize of ATen's native/cuda/MultiTensorApply.cuh."""


class Update(NamedTuple):
    """An update of the weights, when the state is there already: the second, or one that renews projections."""

    state: int
    """Bytes of state on the card, each storage rounded up to the allocator's blocks."""
    host: int
    """Bytes of paged state, which may leave the card."""
    events: list[Event]
    """What is made and dropped in the phases `clipping` and `optimizer`. Weights, gradients and state are not in it."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def update(
    name: str,
    parameters: Sequence[Weight],
    *,
    mode: FakeTensorMode,
    max_grad_norm: float | None = None,
    **keywords: Any,
) -> Update:
    """Return what one update of `parameters` by the optimizer that transformers calls `name` takes on a GPU.

    `keywords` are those of a plan's optimizer: `args` and `target_modules` as `optim_args` and `optim_target_modules`,
    `weight_decay`, and what the class takes. Gradients have their parameter's dtype. `max_grad_norm` None or 0: no
    clipping. Optimizers of torch, transformers, schedulefree, galore-torch and apollo-torch run on tensors of `mode`;
    bitsandbytes and torchao follow the rules of `low_bit`.

    Raises ValueError for a name that transformers does not have, and for one whose memory is not known.
    """
    check(name)
    options = _read(keywords.pop("args", None))
    recorder = Recorder()
    if not parameters:
        return Update(0, 0, [])
    with mode:
        if max_grad_norm:
            _clip(parameters, max_grad_norm, recorder)
        if name in REAL:
            held, notes = _run(name, parameters, recorder, options=options, **keywords), _real_notes(name)
        else:
            held, notes = _by_rule(name, parameters, recorder, low_bit.keywords_of(name, keywords, options))
    return Update(held.card, held.host, recorder.events, notes)


def check(name: str) -> None:
    """Raise ValueError where the memory of an optimizer is not known."""
    if name in NOT_MODELLED:
        raise ValueError(
            f"optim={name!r} has no estimate: {NOT_MODELLED[name]}. Choose one of {listed(sorted(NAMES), 'or')}."
        )
    if name not in NAMES:
        raise unknown("optimizer", name, NAMES)


def _read(args: str | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in (args or "").replace(" ", "").split(",") if pair]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise ValueError(
            f"optim_args {args!r} has {wrong[0]!r} without a value: write name=value, with commas between."
        )
    return {key: value for key, _, value in pairs}


def _fresh(weight: Weight) -> torch.nn.Parameter:
    """Return a parameter with a gradient."""
    parameter = torch.nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype))
    parameter.grad = torch.empty(weight.shape, dtype=weight.dtype)
    return parameter


def _clip(weights: Sequence[Weight], limit: float, recorder: Recorder) -> None:
    """Record clipping; on a GPU the norms of all gradients of one dtype are taken together, in pieces."""
    # a norm is one number whatever its gradient is, so that one small one stands for all of its dtype
    one = {dtype: _fresh(Weight((1,), dtype)) for dtype in {weight.dtype for weight in weights}}
    parameters = [one[weight.dtype] for weight in weights]
    recorder.know(p.grad for p in one.values() if p.grad is not None)
    with recorder, recorder.during("clipping"):
        for dtype in {weight.dtype for weight in weights}:
            counts = [weight.numel for weight in weights if weight.dtype == dtype]
            pieces = len(counts) * -(-max(counts) // CHUNK) * 4
            recorder.free(recorder.allocate(pieces, ""), pieces)
        torch.nn.utils.clip_grad_norm_(parameters, limit)


def _run(
    name: str, weights: Sequence[Weight], recorder: Recorder, *, options: dict[str, str], **keywords: Any
) -> low_bit.Held:
    """Take two steps of a real optimizer and record the second; return its state.

    Weights that are alike need not all be there. Where tensors are updated one by one, one stands for all: what passes
    is never there twice. Where all are updated at once they are one tensor for the time being, and events of their own.
    """
    kind, decay, targets = REAL[name], keywords.pop("weight_decay", 0.0), keywords.pop("target_modules", None)
    times = Counter(_alike(weight, kind, targets) for weight in weights)
    shapes = [(count, *key[0]) if kind.at_once else key[0] for key, count in times.items()]
    parameters = [_fresh(Weight(shape, key[1])) for shape, key in zip(shapes, times, strict=True)]
    groups = _groups(kind, list(times), parameters, decay)
    optimizer = kind.build([group | keywords for group in groups if group["params"]], options)
    with without_data(name):
        optimizer.step()
    card = 0
    for parameter, count in zip(parameters, times.values(), strict=True):
        card += count * _size(optimizer.state[parameter], kind, recorder, count if kind.at_once else 1)
        if kind.projects:
            optimizer.state[parameter]["step"] = 0  # so that the projections are found anew
    recorder.know(parameters)
    recorder.know(p.grad for p in parameters if p.grad is not None)
    with recorder, recorder.during("optimizer"):
        with without_data(name):
            optimizer.step()
        optimizer.state.clear()  # a state replaced by a new one of its size is no gain
    if kind.at_once:
        recorder.events = _apart(recorder.events, set(shapes))
    return low_bit.Held(card)


def _apart(events: Sequence[Event], stacked: set[tuple[int, ...]]) -> list[Event]:
    """Return the events with one for each of the tensors that were one in the step."""
    fresh = itertools.count(max((event.key for event in events), default=0) + 1)
    parts: dict[int, tuple[list[int], int]] = {}
    out: list[Event] = []
    for event in events:
        if event.phase == "optimizer" and event.size > 0 and event.shape in stacked:
            number, *shape = event.shape
            size = rounded(math.prod(shape) * getattr(torch, event.dtype).itemsize)
            parts[event.key] = [next(fresh) for _ in range(number)], size
        if event.key in parts:
            keys, size = parts[event.key]
            one = event._replace(size=size if event.size > 0 else -size, shape=event.shape[1:])
            bare = one._replace(flops=0, moved=0)  # the first has the work of all, which were one tensor
            out += [one._replace(key=keys[0]), *(bare._replace(key=key) for key in keys[1:])]
        else:
            out.append(event)
    return out


def _alike(weight: Weight, kind: Kind, targets: Any) -> tuple[tuple[int, ...], torch.dtype, bool, bool]:
    return weight.shape, weight.dtype, weight.decays, kind.projects and weight.aimed_at(targets)


def _groups(kind: Kind, kinds: Sequence[Any], parameters: Sequence[Any], decay: float) -> list[dict[str, Any]]:
    """Return the groups that Trainer makes: what decays and what does not, or what is projected and what is not."""
    pairs = list(zip(kinds, parameters, strict=True))
    if kind.projects:
        if not any(key[3] for key in kinds):
            raise ValueError(
                "target_modules names none of the model's linear layers, and there is nothing to project: "
                "write 'all-linear', a part of their names, or a regular expression for whole names."
            )
        return [{"params": [p for key, p in pairs if key[3] == each], "projected": each} for each in (False, True)]
    return [
        {"params": [p for key, p in pairs if key[2] == each], "weight_decay": decay * each} for each in (True, False)
    ]


def _size(state: dict[str, Any], kind: Kind, recorder: Recorder, stacked: int) -> int:
    """Return the bytes on the card of one weight's state, where `stacked` are one; the recorder gets to know it."""
    storages: dict[int, int] = {}
    for name, value in state.items():
        for tensor in tensors_in(getattr(value, "ortho_matrix", value)):  # a projector has its own inside
            recorder.know([tensor])
            if name != "step" or kind.steps_on_card:
                storage = tensor.untyped_storage()
                storages[storage._cdata] = rounded(storage.nbytes() // stacked)
    return sum(storages.values())


def _real_notes(name: str) -> tuple[str, ...]:
    if name.startswith("galore"):
        return ("the update is one that finds GaLore's directions anew; the workspace of the SVD is not counted",)
    if name.startswith("apollo"):
        return ("the update is one that draws APOLLO's projections anew",)
    return ()


def _by_rule(
    name: str, weights: Sequence[Weight], recorder: Recorder, sizes: dict[str, int]
) -> tuple[low_bit.Held, tuple[str, ...]]:
    if name in low_bit.TORCHAO:
        with recorder.during("optimizer"):
            low_bit.torchao_step(name, weights, recorder, **sizes)
        note = "torchao's compiled step makes the buffers that torch's compiler makes of it for a CPU"
        return low_bit.torchao_state(name, weights, **sizes), (note,)
    held = low_bit.bitsandbytes_state(name, weights, smallest=sizes["smallest"])
    note = "paged optimizer state is counted outside the card, though it stays there while there is room"
    return held, (note,) if held.host else ()

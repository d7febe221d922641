"""One training step of a model without data: forward, backward, and what stays of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory.build import tensors
from hf_efficient.memory.extend import BETWEEN
from hf_efficient.memory.flash import flash_attention
from hf_efficient.memory.like_cuda import LikeCpu, LikeCuda
from hf_efficient.memory.record import Event, Mark, Recorder
from hf_efficient.memory.values import Values, answered

BALANCED = "Every expert gets as many tokens, as balancing losses aim at; an uneven routing needs more."


@dataclass
class Traced:
    """What a traced step did."""

    events: list[Event]
    marks: list[Mark]


@dataclass(kw_only=True)
class Step:
    """How a step is taken."""

    autocast: torch.dtype | None = None
    checkpointing: bool = False
    offload: bool = False
    """Checkpointed inputs are kept in host memory."""
    reentrant: bool = False
    """Checkpointing is the old one, whose backward pass runs another one inside."""
    accumulating: bool = False
    """Gradients of an earlier micro-batch are there."""
    flash: bool = True
    package: bool = False
    """Attention is computed by FlashAttention's own package."""
    keep_outputs: bool = False
    """As a loop does that holds on to the model's outputs until the backward pass is over."""
    imitate: bool = True
    """False: take the CPU's own kernels, to be held against a real step on a CPU."""
    wrap: Callable[[nn.Module, Recorder], None] | None = None
    """Called before the step; may add hooks, such as those that gather sharded weights."""
    paths: tuple[str, ...] = ()
    """Module lists whose layers are marked."""
    workspaces: int = 0
    """Bytes of cuBLAS's workspaces, in which products are computed."""
    said: list[str] = field(default_factory=list)
    """What was assumed on the way."""


def trace(model: nn.Module, inputs: Mapping[str, Any], step: Step, mode: FakeTensorMode) -> Traced:
    """Trace one forward and backward pass of `model`, on tensors of `mode`; what is there before is not counted."""
    recorder = Recorder()
    recorder.know(tensors(model))
    trained = [p for p in model.parameters() if p.requires_grad]
    if step.accumulating:
        with mode:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
        recorder.know(p.grad for p in trained if p.grad is not None)
    hooks = _mark_layers(model, step.paths, recorder)
    if step.checkpointing or _checkpoints_itself(model):
        _recompute(model, recorder, step)
    if step.wrap:
        step.wrap(model, recorder)
    recorder.mark(0, BETWEEN)
    try:
        with (
            mode,
            answered(),
            flash_attention(step.package),
        ):
            _pass(model, inputs, step, recorder)
            gradients = {recorder.key_of(p.grad) for p in trained if p.grad is not None}
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in trained:
            parameter.grad = None
    events = [e._replace(role="gradient") if e.key in gradients and not e.role else e for e in recorder.events]
    return Traced(events[: recorder.ended], [mark for mark in recorder.marks if mark.at <= recorder.ended])


def _kernels(step: Step) -> Any:
    """Return the mode in which the kernels are those of the device."""
    return LikeCuda(step.flash) if step.imitate else LikeCpu()


def _pass(model: nn.Module, inputs: Mapping[str, Any], step: Step, recorder: Recorder) -> None:
    cast = torch.autocast("cpu", dtype=step.autocast, enabled=step.autocast is not None)
    values = Values()
    with values, recorder:
        with recorder.during("forward"), _kernels(step):
            loss, outputs = _forward(model, inputs, step, cast)
        with recorder.during("backward"), _kernels(step):
            recorder.mark(0, BETWEEN)
            loss.backward()
        del loss, outputs
    if values.balanced and BALANCED not in step.said:
        step.said.append(BALANCED)
    recorder.ended = len(recorder.events)


def _forward(model: nn.Module, inputs: Mapping[str, Any], step: Step, cast: Any) -> tuple[torch.Tensor, Any]:
    """Return the loss, and the outputs where they are kept; Trainer lets them go."""
    if step.autocast is None:
        outputs = model(**inputs)
    else:
        from accelerate.utils.operations import convert_outputs_to_fp32

        with cast:
            outputs = model(**inputs)
        # accelerate makes float32 of everything that comes out of a model under autocast
        outputs = convert_outputs_to_fp32(lambda: outputs)()
    loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
    return loss, outputs if step.keep_outputs else None


def _mark_layers(model: nn.Module, paths: tuple[str, ...], recorder: Recorder) -> list[Any]:
    hooks = []
    for stack, path in enumerate(paths):
        layers = list(model.get_submodule(path).children())
        for place, layer in enumerate(layers):
            hooks.append(layer.register_forward_pre_hook(partial(_enter, recorder, stack, place), with_kwargs=True))
            last = place == len(layers) - 1
            hooks.append(layer.register_forward_hook(partial(_leave, recorder, stack, place, last)))
    return hooks


def _enter(recorder: Recorder, stack: int, place: int, layer: nn.Module, args: Any, kwargs: Any) -> None:
    if recorder.phase not in ("forward", "evaluation"):
        return  # checkpointing calls the layer again
    recorder.mark(stack, place)
    first = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) and a.requires_grad), None)
    if place == 0 and first is not None:
        first.register_hook(partial(_back, recorder, stack, BETWEEN))


def _leave(recorder: Recorder, stack: int, place: int, last: bool, layer: nn.Module, args: Any, out: Any) -> None:
    if recorder.phase not in ("forward", "evaluation"):
        return
    tensor = out if isinstance(out, torch.Tensor) else next((o for o in out if isinstance(o, torch.Tensor)), None)
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(partial(_back, recorder, stack, place))
    layer.__dict__["_place"] = stack, place
    if last:
        recorder.mark(stack, BETWEEN)


def _back(recorder: Recorder, stack: int, place: int, gradient: torch.Tensor) -> None:
    recorder.mark(stack, place)


def _checkpoints_itself(model: nn.Module) -> bool:
    """Say whether checkpointing was switched on in a module of yours, in the way that is not reentrant."""
    on = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    how = [getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {}) for module in on]
    return any(keywords.get("use_reentrant") is False for keywords in how)


def _recompute(model: nn.Module, recorder: Recorder, step: Step) -> None:
    """Let checkpointed layers be computed again in the phase `recompute`, as CUDA would."""
    from torch.utils.checkpoint import checkpoint

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with recorder.during("recompute"), _kernels(step):
            yield

    call = partial(checkpoint, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), again()))
    if step.reentrant:
        call = partial(_reentrant, recorder, again)
    if step.offload:
        call = partial(_on_host, call, recorder)
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module._gradient_checkpointing_func = call  # type: ignore[assignment]


def _reentrant(recorder: Recorder, again: Callable[[], Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Checkpoint as PyTorch's old way does; the layer's backward pass is marked where the checkpoint's begins."""
    from torch.utils.checkpoint import checkpoint

    def run(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*inputs, **kwargs)
        with again():
            return function(*inputs, **kwargs)

    out = checkpoint(run, *args, use_reentrant=True, preserve_rng_state=False)
    layer = getattr(function, "__self__", None) or getattr(getattr(function, "func", None), "__self__", None)
    tensor = out if isinstance(out, torch.Tensor) else next((o for o in out if isinstance(o, torch.Tensor)), None)
    place = vars(layer).get("_place") if layer is not None else None
    if place is not None and tensor is not None and tensor.requires_grad:
        tensor.register_hook(partial(_back, recorder, *place))
    return out


def _on_host(call: Callable[..., Any], recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
    """Checkpoint as `save_on_cpu` does: what is saved leaves the card, and comes back as a new tensor."""

    def pack(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
        recorder.send(tensor.numel() * tensor.element_size())
        return tensor.shape, tensor.dtype

    def unpack(packed: tuple[torch.Size, torch.dtype]) -> torch.Tensor:
        return torch.empty(packed[0], dtype=packed[1])

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return call(*args, **kwargs)


def passed_forward(
    model: nn.Module, inputs: Mapping[str, Any], step: Step, mode: FakeTensorMode
) -> tuple[int, torch.Tensor | None]:
    """Return the highest bytes of a forward pass without gradients, and the logits that come out, without data."""
    recorder = Recorder()
    recorder.know(tensors(model))
    context = (
        mode,
        answered(),
        flash_attention(step.package),
        torch.no_grad(),
        Values(),
        recorder,
    )
    with contextlib.ExitStack() as stack:
        for each in (*context, LikeCuda(step.flash)):
            stack.enter_context(each)
        cast = torch.autocast("cpu", dtype=step.autocast, enabled=step.autocast is not None)
        with recorder.during("evaluation"):
            _, outputs = _forward(model, inputs, replace(step, keep_outputs=True), cast)
        logits = outputs["logits"] if isinstance(outputs, Mapping) and "logits" in outputs else None
        live = top = 0
        for event in recorder.events:
            live += event.size
            top = max(top, live)
    return top, logits if isinstance(logits, torch.Tensor) else None

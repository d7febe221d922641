"""Values of the whole numbers of a traced batch: its token ids, masks and sizes, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

MOST = 2**28
"""Bytes of one tensor that are computed at most."""
FEW = 2**20
"""Numbers of one tensor that are computed at most where they are no whole ones."""
aten = torch.ops.aten
READ = (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default)
"""What asks for values."""
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
ALIKE = (
    aten._to_copy.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.clone.default,
)
"""What leaves all numbers of a tensor the same where they are the same."""
RANDOM = (aten.rand.default, aten.rand.generator)


class Values(TorchDispatchMode):
    """Compute whole numbers and truth values beside the tensors without data, so that a model may ask for them.

    A batch has stated token ids, masks and sizes, and a model may check them, count them or read the size of an image
    from them; what depends on weights or activations stays unknown and raises. One thing is assumed, where a router
    picks experts: each gets as many tokens, and `balanced` says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.balanced = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = all(map(_known, args)) and all(map(_known, kwargs.values()))
        if func in INDEXED:
            args = (args[0], [where for index in args[1] for where in _places(index)], *args[2:])
        if not known:
            out = func(*args, **kwargs)
            if func is aten.topk.default:
                self._balance(out[1], args[0].shape[-1])
            elif args and isinstance(args[0], torch.Tensor) and hasattr(args[0], "_value") and func._schema.is_mutable:
                del args[0]._value
            return out
        if func in READ:
            return self._read(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, RuntimeError):
            if any(isinstance(argument, torch.Tensor) for argument in args):
                return self._read(func, args, kwargs)
            raise
        self._follow(func, args, kwargs, out)
        return out

    def _real(self, func: Any, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes():
            real_args, real_kwargs = tree_map_only(torch.Tensor, _value, (args, kwargs))
            return func(*real_args, **real_kwargs)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operation says of known values, whose shape follows from them."""
        found = self._real(func, args, kwargs)
        return tree_map_only(torch.Tensor, without_data, found)

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        outs = [leaf for leaf in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(leaf, torch.Tensor)]
        if func in ALIKE and args[0].is_floating_point() and outs[0].numel() > FEW and _uniform(args[0]):
            with _disable_current_modes():
                outs[0]._value = _first(_value(args[0])).to(outs[0].dtype).expand(outs[0].shape)  # type: ignore[attr-defined]
            return
        if not outs or any(_too_many(out) for out in outs):
            return
        if func in (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default):
            return
        found = self._real(func, args, kwargs)
        if func in RANDOM:
            with _disable_current_modes():
                found = torch.ones_like(found)  # a layer that may be dropped at random is not dropped
        for fake, real in zip(outs, found if isinstance(found, (tuple, list)) else [found], strict=False):
            fake._value = real  # type: ignore[attr-defined]

    def _balance(self, picked: torch.Tensor, experts: int) -> None:
        self.balanced = True
        with _disable_current_modes():
            picked._value = (torch.arange(picked.numel()) % experts).reshape(picked.shape)  # type: ignore[attr-defined]


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a traced tensor; a tensor that has data is its own."""
    found: torch.Tensor | None = getattr(tensor, "_value", None)
    return found if found is not None or isinstance(tensor, FakeTensor) else tensor


def _first(value: Any) -> torch.Tensor:
    found: torch.Tensor = value[(0,) * value.ndim]
    return found


def _uniform(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is known to hold one number throughout, as a made image does."""
    value = _value(tensor)
    return value is not None and value.numel() > 1 and not any(value.stride())


def _too_many(out: torch.Tensor) -> bool:
    if out.is_complex():
        return True
    return out.numel() > FEW if out.is_floating_point() else out.numel() * out.element_size() > MOST


def _known(argument: Any) -> bool:
    """Say whether an argument is no tensor, or one whose value is known."""
    if isinstance(argument, torch.Tensor):
        return hasattr(argument, "_value") or not isinstance(argument, FakeTensor)
    return all(map(_known, argument)) if isinstance(argument, (list, tuple)) else True


def _places(index: Any) -> Sequence[Any]:
    """Return the whole numbers that a mask of known truth values stands for as an index, as torch makes them of it."""
    value = _value(index) if isinstance(index, torch.Tensor) else None
    if value is None or value.dtype not in (torch.bool, torch.uint8):
        return [index]
    with _disable_current_modes():
        found = value.nonzero(as_tuple=True)
    return [without_data(each) for each in found]


def without_data(real: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the fake mode that is on, whose value is known."""
    fake = torch.empty(real.shape, dtype=real.dtype)
    fake._value = real  # type: ignore[attr-defined]
    return fake


@contextmanager
def answered() -> Iterator[None]:
    """Let transformers ask tensors without data what it asks those that have some: it would otherwise not try.

    It takes the path of a compiler there, which holds a mask that a real step leaves out.
    """
    from transformers.utils import import_utils

    before = getattr(import_utils, "is_fake_tensor", None)  # since 5.0
    if before is None:
        yield
        return
    import_utils.is_fake_tensor = lambda tensor: False
    try:
        yield
    finally:
        import_utils.is_fake_tensor = before

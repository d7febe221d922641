"""Values of the whole numbers of a traced batch: its token ids, masks and sizes, and what follows from them alone."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

MOST = 2**24
"""Numbers of one tensor that are computed at most."""
FEW = 64
"""As many of them, where they are no whole numbers."""
aten = torch.ops.aten
RANDOM = (aten.rand.default, aten.rand.generator)


class Values(TorchDispatchMode):
    """Compute whole numbers and truth values beside the tensors without data, so that a model may ask for them.

    A batch has stated token ids, masks and sizes, and a model may check them, count them or read the size of an image from
    them; what depends on weights or activations stays unknown and raises. One thing is assumed: where a router picks
    experts, `balanced` says so, and each gets as many tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.balanced = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        known = all(_value(leaf) is not None for leaf in leaves)
        if known and leaves and func in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default):
            return self._read(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, RuntimeError):
            if known and leaves:
                return self._read(func, args, kwargs)
            raise
        if func is aten.topk.default and not known:
            self._balance(out[1], leaves[0].shape[-1])
        elif known:
            self._follow(func, args, kwargs, out)
        elif func._schema.is_mutable and isinstance(args[0] if args else None, torch.Tensor):
            args[0].__dict__.pop("_value", None)
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
        if not outs or any(o.is_complex() or o.numel() > (FEW if o.is_floating_point() else MOST) for o in outs):
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


def without_data(real: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the fake mode that is on, whose value is known."""
    fake = torch.empty(real.shape, dtype=real.dtype)
    fake._value = real  # type: ignore[attr-defined]
    return fake

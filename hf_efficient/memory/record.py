"""Every storage that a traced step makes and drops, in order, in the sizes of CUDA's allocator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from hf_efficient.memory.blocks import BLOCK, whole
from hf_efficient.memory.costs import Cost, cost


class Event(NamedTuple):
    """One storage comes into being, or goes: then `size` is negative."""

    key: int
    size: int
    """Bytes, rounded up to whole blocks."""
    phase: str
    op: str = ""
    """The operation that made it."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    role: str = ""
    """`gradient` for what stays in a parameter's `.grad`, `gathered` for weights of other ranks."""
    host: int = 0
    """Bytes that go to host memory, and stay there until the step is over."""
    flops: int = 0
    """Floating-point operations of the operation; 0 for what is no product. The first storage it makes has them all."""
    moved: int = 0
    """Bytes that it reads and writes."""


class Mark(NamedTuple):
    """From this event on, `layer` of `stack` computes in `phase`; layer -1 is what lies between the layers."""

    at: int
    phase: str
    stack: int
    layer: int


def rounded(size: int) -> int:
    """Return the bytes that CUDA's caching allocator hands out for `size`."""
    return whole(size, BLOCK)


class Recorder(TorchDispatchMode):
    """Write down every storage made while it is entered. Storages passed to `know` are there already.

    Storages are counted, not tensors: views cost nothing, and a storage goes when the last tensor on it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.marks: list[Mark] = []
        self.phase = ""
        self.ended = 0
        """How many events there were when the step was over."""
        self._alive: dict[int, Any] = {}
        self._count = 0

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave the storages of these tensors out: whoever calls counts them."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._alive[storage._cdata] = (weakref.ref(storage, self._forget(storage._cdata)), None)

    def key_of(self, tensor: torch.Tensor) -> int | None:
        """Return the key of a recorded storage; None for one that is known or was never seen."""
        found = self._alive.get(tensor.untyped_storage()._cdata)
        return found[1] if found else None

    def mark(self, stack: int, layer: int) -> None:
        """Note that from here on another layer computes, or what lies between the layers (-1)."""
        self.marks.append(Mark(len(self.events), self.phase, stack, layer))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Name what happens inside."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def allocate(self, size: int, role: str) -> int:
        """Note bytes that no tensor of the trace stands for, such as a communication buffer; return their key."""
        self._count += 1
        self.events.append(Event(self._count, rounded(size), self.phase, role, role=role))
        return self._count

    def free(self, key: int, size: int) -> None:
        """Note that what `allocate` noted is gone."""
        self.events.append(Event(key, -rounded(size), self.phase))

    def send(self, size: int) -> None:
        """Note bytes that go to host memory."""
        self._count += 1
        self.events.append(Event(self._count, 0, self.phase, host=size))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        taken, before = cost(func, args, kwargs, out), len(self.events)
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, torch.Tensor):
                self._see(each, func)
        if len(self.events) > before:
            self.events[before] = self.events[before]._replace(flops=taken.flops, moved=taken.moved)
        elif taken.moved:
            self.work(str(func), taken)
        return out

    def work(self, op: str, taken: Cost) -> None:
        """Note what an operation takes that makes no storage."""
        self._count += 1
        self.events.append(
            Event(self._count, 0, self.phase, op, dtype=taken.dtype, flops=taken.flops, moved=taken.moved)
        )

    def _see(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self._alive:
            return
        size = rounded(storage.nbytes())
        self._count += 1
        key = self._count
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.events.append(Event(key, size, self.phase, str(func), tuple(tensor.shape), dtype))
        self._alive[place] = (weakref.ref(storage, self._drop(place, key, size)), key)

    def _drop(self, place: int, key: int, size: int) -> Any:
        def gone(_: Any) -> None:
            self._alive.pop(place, None)
            self.events.append(Event(key, -size, self.phase))

        return gone

    def _forget(self, place: int) -> Any:
        return lambda _: self._alive.pop(place, None)


def note(op: str, flops: int, moved: int, dtype: torch.dtype) -> None:
    """Note what a kernel takes that is imitated by its storages alone; nothing where nobody records."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, Recorder):
            mode.work(op, Cost(flops, moved, str(dtype).removeprefix("torch.")))
            return

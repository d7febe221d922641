"""How many samples a GPU works on at once, and how many one update sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from hf_efficient.needs import ITEMS_COUNTED
from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import Trick

if TYPE_CHECKING:
    from hf_efficient.machine import Machine


@spelled
def batch_size(
    per_device: Annotated[int, AtLeast(1)] = 8, effective: Annotated[int, AtLeast(1)] | None = None
) -> Trick:
    """Say how many samples one GPU works on at once and, with `effective`, how many one update sees.

    The effective batch is per_device x accumulation steps x processes. Give `effective` and the accumulation follows
    once the number of processes is known; a number that cannot be met exactly is refused, never rounded.

    Use it when the GPU is not full (raise per_device) or out of memory (lower per_device and keep effective).
    GPUs like powers of two, since tiles and thread groups are; fp16 matmuls run on Tensor Cores at full speed when
    their dimensions are multiples of 8, on A100 and newer of 64. Those dimensions are batch x length, hidden size and
    vocabulary, so a batch of 3 with rows of 512 is fine: the advice is computed and printed, not imposed.

    Not as a free choice of `effective`: another effective batch is another training, with another best learning rate.
    per_device alone changes nothing but speed and memory.

    Published: batch 8 without length control can be slower than batch 1, since each batch is padded to its longest row.
    Source: NVIDIA, Deep Learning Performance documentation, "Matrix Multiplication Background User's Guide".
    """
    return Trick(
        family="batch",
        saves="nothing by itself; fewer, larger kernels use the GPU better",
        costs=f"activations of {per_device} samples",
        numerics="exact",
        shows=("rows",),
        trainer={"per_device_train_batch_size": per_device},
        dataloader={"batch_size": per_device},
        loop={"effective_batch": effective} if effective else {},
        remarks=ITEMS_COUNTED if effective and effective > per_device else {},
        advise=lambda machine: _advise(per_device, machine),
    )


def tensor_core_multiple(machine: Machine) -> int:
    """Return the multiple that 16-bit matmul dimensions should have on `machine`; 1 without Tensor Cores."""
    if machine.capability >= (8, 0):
        # NVIDIA gives 64 for A100 (128 bytes); 8 (16 bytes) is enough to use Tensor Cores at all.
        return 64
    return 8 if machine.capability >= (7, 0) else 1


def _advise(per_device: int, machine: Machine) -> str:
    multiple = tensor_core_multiple(machine)
    if per_device % multiple == 0 and per_device & (per_device - 1) == 0:
        return ""
    below = 1 << per_device.bit_length() - 1
    up = -(-per_device // multiple) * multiple
    power = f"{per_device} is a power of two" if below == per_device else f"the powers of two are {below}, {2 * below}"
    cores = f"; {machine.gpu} likes batch x length in multiples of {multiple}" if multiple > 1 else ""
    alone = f" ({up} if rows have length 1, as in classification heads)" if multiple > 1 and up != per_device else ""
    return f"batch_size({per_device}): {power}{cores}{alone}. Rows of a length that is such a multiple do as well."

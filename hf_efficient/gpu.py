"""The GPUs that CUDA would see, read from NVIDIA's driver libraries with ctypes alone."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import NamedTuple

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class Gpu(NamedTuple):
    """One GPU as the driver reports it; memory is the total, in bytes."""

    name: str
    memory: int
    capability: tuple[int, int]
    uuid: str = ""


class Reading(NamedTuple):
    """What the driver said: the visible GPUs, the library that named them, and what to know about them."""

    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    note: str = ""


def read_gpus() -> Reading:
    """Return the GPUs that CUDA would see; where there are none, `note` says why. Nothing is raised.

    NVML comes first, because cuInit breaks CUDA in every process that is forked afterwards.
    """
    refusals = []
    for read in (_from_nvml, _from_libcuda):
        try:
            return read()
        except Exception as error:  # a broken driver is a finding, not a crash
            refusals.append(str(error))
    return Reading(note=f"No NVIDIA GPU could be read: {'; '.join(refusals)}.")


def visible(gpus: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; None leaves all of them.

    As in CUDA, the first invalid entry ends the list, and a repeated one hides every GPU.
    Source: CUDA Programming Guide, "CUDA Environment Variables"; torch.cuda._parse_visible_devices.
    """
    if mask is None:
        return tuple(gpus)
    chosen: list[int] = []
    for entry in mask.split(","):
        index = _index(entry.strip(), gpus)
        if index in chosen:
            return ()
        if index is None:
            break
        chosen.append(index)
    return tuple(gpus[index] for index in chosen)


def _index(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """Return which GPU an entry of CUDA_VISIBLE_DEVICES means, or None where it means none or several."""
    if entry.startswith("GPU-"):
        matches = [index for index, gpu in enumerate(gpus) if gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    digits = re.match(r"\d+", entry)
    return int(digits[0]) if digits and int(digits[0]) < len(gpus) else None


def _library(linux: str, windows: str) -> ctypes.CDLL:
    name = windows if os.name == "nt" else linux
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise OSError(f"{name} cannot be loaded") from error


def _call(function: Callable[..., int], *arguments: object) -> None:
    if code := function(*arguments):
        raise OSError(f"{getattr(function, '__name__', 'the driver')} returned {code}")


def _from_nvml() -> Reading:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask and mask.startswith("MIG-"):
        raise OSError("CUDA_VISIBLE_DEVICES names a MIG slice")
    nvml = _library("libnvidia-ml.so.1", "nvml.dll")
    _call(nvml.nvmlInit_v2)
    try:
        count = ctypes.c_uint()
        _call(nvml.nvmlDeviceGetCount_v2, byref(count))
        installed = [_nvml_gpu(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()
    gpus = visible(installed, mask)
    return Reading(gpus, "NVML", _remark(installed, gpus))


def _remark(installed: Sequence[Gpu], gpus: Sequence[Gpu]) -> str:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not gpus:
        return f"CUDA_VISIBLE_DEVICES={mask!r} hides every GPU." if installed else "The driver reports no GPU."
    unordered = os.environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
    if mask and not mask.startswith("GPU-") and unordered and len({gpu.name for gpu in installed}) > 1:
        # NVML counts by bus and CUDA by speed, so that 0 may be two cards.
        return "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA_VISIBLE_DEVICES counts the cards as nvidia-smi does."
    return ""


def _nvml_gpu(nvml: ctypes.CDLL, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    _call(nvml.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), byref(handle))
    mig, pending = ctypes.c_uint(), ctypes.c_uint()
    if hasattr(nvml, "nvmlDeviceGetMigMode"):
        nvml.nvmlDeviceGetMigMode(handle, byref(mig), byref(pending))
    if mig.value:
        # A process gets one slice, and NVML does not say which; libcuda does.
        raise OSError("MIG is on")
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    _call(nvml.nvmlDeviceGetName, handle, name, ctypes.c_uint(96))
    _call(nvml.nvmlDeviceGetUUID, handle, uuid, ctypes.c_uint(96))
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    _call(nvml.nvmlDeviceGetMemoryInfo, handle, byref(memory))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(nvml.nvmlDeviceGetCudaComputeCapability, handle, byref(major), byref(minor))
    return Gpu(_text(name), memory[0], (major.value, minor.value), _text(uuid))


def _from_libcuda() -> Reading:
    cuda = _library("libcuda.so.1", "nvcuda.dll")
    code = cuda.cuInit(0)
    if code == NO_DEVICE:
        return Reading(note="CUDA finds no GPU.")
    if code:
        raise OSError(f"cuInit returned {code}")
    count = ctypes.c_int()
    _call(cuda.cuDeviceGetCount, byref(count))
    return Reading(tuple(_cuda_gpu(cuda, index) for index in range(count.value)), "libcuda")


def _cuda_gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    _call(cuda.cuDeviceGet, byref(device), index)
    name, memory = ctypes.create_string_buffer(96), ctypes.c_size_t()
    _call(cuda.cuDeviceGetName, name, 96, device)
    _call(cuda.cuDeviceTotalMem_v2, byref(memory), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(cuda.cuDeviceGetAttribute, byref(major), CAPABILITY_MAJOR, device)
    _call(cuda.cuDeviceGetAttribute, byref(minor), CAPABILITY_MINOR, device)
    return Gpu(_text(name), memory.value, (major.value, minor.value))


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return buffer.value.decode("utf-8", "replace")

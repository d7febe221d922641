"""The computer that trains: its GPUs, CPU and installed packages, read or looked up without importing torch."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TypeVar

from hf_efficient.cards import CARDS, Card, find, reported_as
from hf_efficient.gpu import Reading, read_gpus

GIB = 2**30
CPUINFO = Path("/proc/cpuinfo")
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan must know of a computer. Zero, empty and absent mean unknown or none."""

    gpu: str = ""
    """The card's name; of several different cards, the one with the least memory."""
    accelerator: str = ""
    """`cuda`, `rocm`, `mps`, or empty where only the CPU computes."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) where the accelerator has none."""
    gpus: int = 0
    """How many GPUs a process sees."""
    memory_gib: float = 0.0
    """Of one GPU, in total, as nvidia-smi reports it; GiB of 2**30 bytes."""
    bandwidth_gb_s: float = 0.0
    """Between one GPU and its memory, 1e9 bytes/s."""
    link_gb_s: float = 0.0
    """From one GPU to another, per direction, nominal, 1e9 bytes/s: NVLink where the board has it, else PCIe."""
    host_link_gb_s: float = 0.0
    """Between one GPU and the host, per direction, nominal, 1e9 bytes/s: PCIe."""
    peak_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Dense 1e12 FLOP/s for float32, tf32, float16 and bfloat16, as far as the hardware has them."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Installed distributions: normalized name to version."""
    cpu: str = ""
    cpu_cores: int = 0
    """Logical cores that this process may use."""
    cpu_bf16: bool = False
    """Has the CPU bf16 instructions?"""
    host_memory_gib: float = 0.0
    """Of the computer, or of the container where that has a limit; GiB of 2**30 bytes."""
    source: str = ""
    """Where the GPU's figures come from."""
    note: str = ""
    """What the reader of these figures should know, such as why no GPU was found."""

    @classmethod
    def named(cls, name: str, *, gpus: int = 1) -> Machine:
        """Return a machine with that many cards of that name; its packages and CPU are those at hand.

        ValueError for a name that is not in the table or means several cards. Source: `Machine.source`.
        """
        card = find(name)
        if gpus < 1:
            raise ValueError(f"gpus={gpus} is no number of {card.name} cards, because one is the least: pass gpus=1.")
        return _with_card(_host(), card, gpus=gpus)


def cards() -> tuple[Machine, ...]:
    """Return a machine with one card for every card in the table, smallest memory first."""
    host = _host()
    return tuple(_with_card(host, card, gpus=1) for card in CARDS)


def this_machine() -> Machine:
    """Return the computer at hand. Nothing is raised, whatever is broken: `note` says what could not be read."""
    host = _host()
    if _or(lambda: (platform.system(), platform.machine()), ("", "")) == ("Darwin", "arm64"):
        return replace(
            host,
            gpu="Apple silicon",
            accelerator="mps",
            gpus=1,
            memory_gib=host.host_memory_gib,
            source="the operating system",
            note="The GPU shares the memory of the CPU.",
        )
    return _with_gpus(host, _or(read_gpus, Reading(note="No GPU could be read.")))


def _with_card(host: Machine, card: Card, *, gpus: int) -> Machine:
    return replace(
        host,
        gpu=card.name,
        accelerator=card.accelerator,
        capability=card.capability,
        gpus=gpus,
        memory_gib=card.memory_mib / 1024,
        bandwidth_gb_s=card.bandwidth_gb_s,
        link_gb_s=card.link_gb_s,
        host_link_gb_s=card.host_link_gb_s,
        peak_tflops=dict(card.peak_tflops),
        source=card.source,
    )


def _with_gpus(host: Machine, reading: Reading) -> Machine:
    if not reading.gpus:
        return replace(host, note=reading.note)
    smallest = min(reading.gpus, key=lambda gpu: (gpu.memory, gpu.capability))
    names = sorted({gpu.name for gpu in reading.gpus})
    mixed = f"The cards differ ({', '.join(names)}); the smallest is described." if len(names) > 1 else ""
    card = reported_as(smallest.name, smallest.memory / 2**20)
    unlisted = "" if card else f"NVIDIA's figures for {smallest.name} are not in the table."
    return replace(
        host,
        gpu=smallest.name,
        accelerator="cuda",
        capability=smallest.capability,
        gpus=len(reading.gpus),
        memory_gib=smallest.memory / GIB,
        bandwidth_gb_s=card.bandwidth_gb_s if card else 0.0,
        link_gb_s=card.link_gb_s if card else 0.0,
        host_link_gb_s=card.host_link_gb_s if card else 0.0,
        peak_tflops=dict(card.peak_tflops) if card else {},
        source=f"{reading.source}; bandwidth and peak rates: {card.source}" if card else reading.source,
        note=" ".join(filter(None, (mixed, reading.note, unlisted))),
    )


def _host() -> Machine:
    """Return everything but the GPU."""
    cpu, cpu_bf16 = _or(_cpu, ("", False))
    return Machine(
        packages=_or(installed_packages, {}),
        cpu=cpu or _or(platform.machine, ""),
        cpu_cores=_or(_cores, 0),
        cpu_bf16=cpu_bf16,
        host_memory_gib=_or(_host_memory, 0) / GIB,
    )


def _or(read: Callable[[], T], otherwise: T) -> T:
    """Return what `read` returns, or `otherwise` where the system is too broken to read it."""
    try:
        return read()
    except Exception:
        return otherwise


def installed_packages() -> dict[str, str]:
    """Return the installed distributions, normalized name (PEP 503) to version; the first on sys.path wins.

    They are read again when a folder of sys.path has changed, as an installation does.
    """
    return dict(_packages_in(tuple((os.path.abspath(folder), _changed(folder)) for folder in sys.path)))


@lru_cache(maxsize=1)
def _packages_in(folders: tuple[tuple[str, int], ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in distributions():
        name, version = _or(partial(_name_and_version, distribution), ("", ""))
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def _changed(folder: str) -> int:
    """Return when a folder last changed, in nanoseconds; 0 for what is no folder."""
    return _or(lambda: os.stat(folder or ".").st_mtime_ns, 0)


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    # Distribution.metadata parses the whole README as an email, and .version does so again.
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    head = text.partition("\n\n")[0]
    name, version = (re.search(rf"^{key}:[ \t]*(\S+)", head, re.MULTILINE) for key in ("Name", "Version"))
    return (name[1], version[1]) if name and version else ("", "")


def _cpu() -> tuple[str, bool]:
    """Return the CPU's model and whether it has bf16 instructions, as Linux tells them."""
    text = CPUINFO.read_text(errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else "", bool(flags and BF16_FLAGS & set(flags[1].split()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _host_memory() -> int:
    """Return the bytes of memory that this process may use at most."""
    if os.name == "nt":
        kib = ctypes.c_ulonglong()
        ctypes.CDLL("kernel32").GetPhysicallyInstalledSystemMemory(ctypes.byref(kib))
        return kib.value * 1024
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # no container, or "max": no limit
            memory = min(memory, int(limit.read_text()))
    return memory

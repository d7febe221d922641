"""What a machine is: a card of the table, or what this computer's driver, kernel and packages say."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hf_efficient import gpu, machine
from hf_efficient.cards import CARDS, Card, reported_as
from hf_efficient.machine import Machine, cards, installed_packages, this_machine

ROOT = Path(__file__).parent.parent
USUAL = ("T4", "V100-16GB", "RTX 3060 12GB", "RTX 3090", "RTX 4090", "RTX 5090", "A10G", "L4", "L40S", "A100-80GB")
USUAL += ("RTX A6000", "H100-80GB", "H100-PCIe", "H200", "B200", "MI300X")
SPELLINGS = {
    **{card.name.lower().replace(" ", "_"): card.name for card in CARDS},
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "Tesla t4": "T4",
    "NVIDIA-A100 80gb": "A100-80GB",
    **{driver_name: card.name for card in CARDS for driver_name in card.driver_names},
}
AMBIGUOUS = {
    "A100": "A100-40GB or A100-80GB",
    "NVIDIA H100": "H100-80GB or H100-PCIe",
    "v100": "V100-16GB or V100-32GB",
    "RTX 6000": "RTX 6000 Ada",  # there is a Quadro of that name
    "RTX": r"one of the \d+ that `hf-efficient list gpus` shows",
    **{shared: card.name for card in CARDS for shared in card.shared_names},
}
NEAREST = {
    "A16": "nearest is A10, and",
    "H800": "nearest is H200, and",
    "RTX 4070 Ti": "nearest are RTX 4070 Ti Super, RTX 3090 Ti and RTX 2080 Ti, and",
    "RTX 2080": "nearest are RTX 2080 Ti, RTX 5080 and RTX 4080, and",
    "Radeon": "looked up:",
    "-": "looked up:",
}
LINKS = {"V100-16GB": (150, 15.75), "RTX 3090": (31.5, 31.5), "A100-80GB": (300, 31.5), "H100-80GB": (450, 63)}
TENSOR_CORES = {(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)}


@pytest.fixture(autouse=True)
def _packages_are_read_anew() -> None:
    machine._packages_in.cache_clear()


def test_table_holds_the_usual_cards_smallest_memory_first() -> None:
    """`cards()` has a machine for every card of the table, and the usual cards; their memory does not fall."""
    assert [card.gpu for card in cards()] == [card.name for card in CARDS]
    assert {card.gpu for card in cards()} >= set(USUAL)
    assert list(cards()) == sorted(cards(), key=lambda card: card.memory_gib)


def test_no_two_cards_share_a_name() -> None:
    """No name of a card or of its driver is another card's too, and every card has one that the driver gives."""
    names = [name for card in CARDS for name in {card.name, *card.driver_names, *card.shared_names}]
    assert len(names) == len(set(names))
    assert all(card.driver_names or card.shared_names for card in CARDS)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_says_where_its_figures_stand(card: Card) -> None:
    """A card cites a document of its maker, the board in it, and an address."""
    maker = "AMD Instinct" if card.accelerator == "rocm" else "NVIDIA"
    assert re.search(rf"^{maker} .+ (datasheet|whitepaper|specifications)\b.*, .+, https://\S+$", card.source)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_cards_figures_do_not_contradict_each_other(card: Card) -> None:
    """16-bit is faster than float32, and twice TF32; bf16 and TF32 come with Ampere, at fp16's rate or none."""
    rates = card.peak_tflops
    assert 0 < rates["float32"] < rates["float16"]
    assert 5 * 1024 < card.memory_mib < 200 * 1024
    assert 200 < card.bandwidth_gb_s < 10_000
    assert {"bfloat16", "tf32"} <= set(rates) or not {"bfloat16", "tf32"} & set(rates)
    assert rates.get("bfloat16", rates["float16"]) == rates["float16"]
    assert rates.get("tf32", rates["float16"] / 2) == pytest.approx(rates["float16"] / 2, rel=0.03)
    assert (card.accelerator == "cuda") == (card.capability in TENSOR_CORES)
    assert ("bfloat16" in rates) == (card.accelerator == "rocm" or card.capability >= (8, 0))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_cards_links_are_slower_than_its_memory(card: Card) -> None:
    """The host is behind PCIe of generation 3, 4 or 5; other cards are no further off, and memory is nearest."""
    assert card.host_link_gb_s in (15.75, 31.5, 63)
    assert card.host_link_gb_s <= card.link_gb_s < card.bandwidth_gb_s


def test_links_are_per_direction_and_without_a_bridge() -> None:
    """NVLink counts half of the printed total, where a board always has it; consumer boards have PCIe alone."""
    links = {name: (m.link_gb_s, m.host_link_gb_s) for name in LINKS if (m := Machine.named(name))}
    assert links == LINKS
    assert (Machine().link_gb_s, Machine().host_link_gb_s) == (0, 0)


def test_figures_are_dense_with_fp32_accumulation() -> None:
    """The A100's figures are its datasheet's; GeForce and Hopper rates are those without fp16 sums and sparsity."""
    a100 = Machine.named("A100-80GB")
    assert a100.peak_tflops == {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}
    assert (a100.bandwidth_gb_s, a100.memory_gib * 1024, a100.capability) == (2039, 81251, (8, 0))
    rates = [Machine.named(name).peak_tflops["float16"] for name in ("RTX 3090", "RTX 4090", "H100-80GB", "H200")]
    assert rates == [71, 165.2, 989.5, 989.5]


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_spelling_does_not_matter(spelling: str, name: str) -> None:
    """Case, spaces, hyphens, underscores and the maker's prefixes do not matter; the driver's name works too."""
    assert Machine.named(spelling).gpu == name


@pytest.mark.parametrize(("name", "known"), AMBIGUOUS.items())
def test_ambiguous_name_is_refused(name: str, known: str) -> None:
    """A name that leaves open which board it is, is refused and names those in the table, or the list if many."""
    with pytest.raises(ValueError, match=rf"is not one card, because .*: write {known}\.$"):
        Machine.named(name)


@pytest.mark.parametrize(("name", "close"), NEAREST.items())
def test_unknown_name_gets_the_nearest(name: str, close: str) -> None:
    """A name that merely resembles a card's is refused with at most three near ones and the command that lists all."""
    with pytest.raises(ValueError, match=rf"There is no GPU .*{close} `hf-efficient list gpus` shows all\.$"):
        Machine.named(name)
    assert reported_as(f"NVIDIA {name}", 16384) is None


def test_memory_tells_boards_of_one_name_apart() -> None:
    """A name that boards share means the card with that memory, whatever a driver reserves, and else no card."""
    for mib, name in ((12288, "RTX 3060 12GB"), (12045, "RTX 3060 12GB"), (8192, None)):
        card = reported_as("NVIDIA GeForce RTX 3060", mib)
        assert (card.name if card else None) == name
    assert reported_as("NVIDIA GeForce RTX 3080", 12288) is None


def test_an_amd_card_has_no_cuda_capability() -> None:
    """A machine with AMD's card is `rocm`, as torch finds it, so that no CUDA capability is taken for met."""
    named = Machine.named("AMD Instinct MI300X")
    assert (named.accelerator, named.capability) == ("rocm", (0, 0))


def test_named_machine_differs_only_in_its_gpus() -> None:
    """A named machine has the packages and CPU at hand, at least one card, and hashes like its equal."""
    named, here = Machine.named("L4", gpus=4), this_machine()
    assert (named.accelerator, named.gpus) == ("cuda", 4)
    for name in ("packages", "cpu", "cpu_cores", "cpu_bf16", "host_memory_gib"):
        assert getattr(named, name) == getattr(here, name), name
    assert hash(named) == hash(Machine.named("l4", gpus=4))
    with pytest.raises(ValueError, match="pass gpus=1"):
        Machine.named("L4", gpus=0)


def fail(*_: object, **__: object) -> Any:
    """Stand in for anything that is broken."""
    raise RuntimeError("broken")


def test_missing_driver_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver's libraries there is no accelerator, and the note names what cannot be loaded."""
    monkeypatch.setattr(ctypes, "CDLL", fail)
    assert gpu.read_gpus().note == "No NVIDIA GPU could be read: broken; broken."
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Path("/nowhere", name).read_bytes())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    here = this_machine()
    assert (here.accelerator, here.gpus, here.gpu, here.memory_gib) == ("", 0, "", 0)
    assert "libnvidia-ml.so.1 cannot be loaded; libcuda.so.1 cannot be loaded" in here.note
    assert here.packages


def test_nothing_is_raised_when_all_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operating system's every answer broken, a machine without anything is returned."""
    for name in ("machine.read_gpus", "machine.distributions", "machine.platform.system", "machine.platform.machine"):
        monkeypatch.setattr(f"hf_efficient.{name}", fail)
    for name in ("sysconf", "sched_getaffinity", "cpu_count"):
        monkeypatch.setattr(os, name, fail, raising=False)
    monkeypatch.setattr(machine, "CPUINFO", Path("/nowhere"))
    assert this_machine() == Machine(note="No GPU could be read.")


CPUINFO = {
    b"model name\t: AMD EPYC\nflags\t\t: fpu avx512_bf16 sse\n": ("AMD EPYC", True),
    b"model name\t: Xeon\nflags\t\t: fpu amx_bf16\n": ("Xeon", True),
    b"model name\t: Old\nflags\t\t: fpu avx2\n": ("Old", False),
    b"processor\t: 0\nFeatures\t: fp asimd bf16 sve\n": ("aarch64", True),
    b"processor\t: 0\nFeatures\t: fp asimd svebf16\n": ("aarch64", False),
    b"\x00\xff:::\nflags\nmodel name": ("aarch64", False),
}


@pytest.mark.parametrize(("text", "cpu"), CPUINFO.items())
def test_cpu_is_read_from_cpuinfo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, cpu: tuple[str, bool]
) -> None:
    """bf16 instructions are whole words of /proc/cpuinfo; garbage in it means none."""
    (tmp_path / "cpuinfo").write_bytes(text)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert (this_machine().cpu, this_machine().cpu_bf16) == cpu


def test_container_limits_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory is the computer's, or what the container may use of it; `max` and garbage are no limit."""
    monkeypatch.setattr(machine, "MEMORY_LIMITS", ())
    whole = this_machine().host_memory_gib
    for text, gib in {"536870912\n": 0.5, "max\n": whole, "garbage": whole}.items():
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(machine, "MEMORY_LIMITS", (tmp_path / "absent", tmp_path / "memory.max"))
        assert this_machine().host_memory_gib == gib


def test_apple_silicon_is_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Apple silicon the accelerator is mps, and its memory is the host's."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    here = this_machine()
    assert (here.accelerator, here.gpus, here.memory_gib) == ("mps", 1, here.host_memory_gib)


def test_packages_are_those_of_importlib() -> None:
    """The packages are the installed distributions as importlib.metadata tells them, names normalized."""
    expected: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        expected.setdefault(re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(), found.version)
    assert installed_packages() == expected


def test_packages_take_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 distributions take well under 150 ms; a damaged one is left out, and the first of a name wins."""
    readme = "A long README.\nName: not-this\nVersion: 9\n" * 1000
    for number in range(150):
        info = tmp_path / f"path{number % 2}" / f"thing{number}-1.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: x.Y_{number // 2}\nVersion: {number % 2}"
        (info / "METADATA").write_text(f"{head}\n\n{readme}")
    (tmp_path / "path0" / "thing0-1.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00Name")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "path0"), str(tmp_path / "path1")])
    start, packages = time.perf_counter(), installed_packages()
    assert time.perf_counter() - start < 0.15
    assert packages == {f"x-y-{number}": "1" if number == 0 else "0" for number in range(75)}


MASKS: dict[str | None, str] = {None: "abcd", "": "", "-1": "", "2,1": "cb", " 0 , 3 ": "ad", "0,2,-1,1": "ac"}
MASKS |= {"0,7,1": "a", "none": "", "1,1": "", "GPU-b": "b", "GPU-c2,GPU-a": "ca", "GPU-d,GPU-no,GPU-a": "d"}
MASKS |= {"GPU-": ""}


@pytest.mark.parametrize(("mask", "left"), MASKS.items())
def test_visible_devices_as_in_cuda(mask: str | None, left: str) -> None:
    """Indices and UUID prefixes choose in order; the first invalid entry ends the list; repetition hides all."""
    gpus = [gpu.Gpu(name, 1, (8, 0), f"GPU-{name}{index}") for index, name in enumerate("abcd")]
    assert "".join(found.name for found in gpu.visible(gpus, mask)) == left


NVML = """
#include <string.h>
typedef struct { const char *name, *uuid; unsigned long long mib; int major, minor, mig; } Card;
static Card cards[] = { CARDS };
int nvmlInit_v2(void) { return CODE; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = sizeof cards / sizeof *cards; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Card **d) { *d = &cards[i]; return 0; }
int nvmlDeviceGetMigMode(Card *d, unsigned *now, unsigned *next) { *now = *next = d->mig; return 0; }
int nvmlDeviceGetName(Card *d, char *s, unsigned n) { strncpy(s, d->name, n); return 0; }
int nvmlDeviceGetUUID(Card *d, char *s, unsigned n) { strncpy(s, d->uuid, n); return 0; }
int nvmlDeviceGetMemoryInfo(Card *d, unsigned long long *m) { m[0] = d->mib << 20; m[1] = m[2] = 1; return 0; }
int nvmlDeviceGetCudaComputeCapability(Card *d, int *a, int *b) { *a = d->major; *b = d->minor; return 0; }
"""
CUDA = """
#include <string.h>
int cuInit(unsigned flags) { return CODE; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = 40 + i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", n); return d != 40; }
int cuDeviceTotalMem_v2(size_t *m, int d) { *m = (size_t)9728 << 20; return d != 40; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : a == 76 ? 0 : -1; return d != 40; }
"""
T4, A100 = '{"Tesla T4", "GPU-a1", 15360, 7, 5}', '{"NVIDIA A100-SXM4-80GB", "GPU-b2", 81920, 8, 0}'
TWO, MIXED, SLICED = f"{T4}, {T4}", f"{A100}, {T4}", A100.replace("8, 0}", "8, 0, 1}")
UNLISTED = '{"NVIDIA GeForce RTX 2070", "GPU-c3", 8192, 7, 5}'
SHARED = '{"NVIDIA GeForce RTX 4060 Ti", "GPU-d4", 16380, 8, 9}'
HALF = SHARED.replace("16380", "8188")
SLICE = {"gpu": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "capability": [8, 0], "memory_gib": 9.5, "peak_tflops": {}}
T4_RATES = {
    "note": "",
    "bandwidth_gb_s": 320,
    "link_gb_s": 15.75,
    "host_link_gb_s": 15.75,
    "peak_tflops": {"float32": 8.1, "float16": 65},
}
FAILED = "No NVIDIA GPU could be read: nvmlInit_v2 returned 18; cuInit returned 999."
READINGS: dict[str, tuple[str, str, dict[str, Any]]] = {  # cards, codes and mask; what the machine is then
    "NVML": (TWO, "0 0", {"gpu": "Tesla T4", "gpus": 2, "capability": [7, 5], "memory_gib": 15, **T4_RATES}),
    "smallest of different cards": (MIXED, "0 0", {"gpu": "Tesla T4", "gpus": 2, "memory_gib": 15}),
    "index": (MIXED, "0 0 0", {"gpu": "NVIDIA A100-SXM4-80GB", "gpus": 1, "bandwidth_gb_s": 2039}),
    "UUID": (MIXED, "0 0 GPU-a", {"gpu": "Tesla T4", "gpus": 1, "note": ""}),
    "hidden": (MIXED, "0 0 -1", {"accelerator": "", "gpus": 0, "note": "CUDA_VISIBLE_DEVICES='-1' hides every GPU."}),
    "unlisted": (
        UNLISTED,
        "0 0",
        {"memory_gib": 8, "bandwidth_gb_s": 0, "link_gb_s": 0, "peak_tflops": {}, "source": "NVML"},
    ),
    "listed with that memory": (SHARED, "0 0", {"bandwidth_gb_s": 288, "note": ""}),
    "unlisted with that memory": (HALF, "0 0", {"bandwidth_gb_s": 0, "peak_tflops": {}, "source": "NVML"}),
    "no card": ("", "0 0", {"accelerator": "", "note": "The driver reports no GPU."}),
    "NVML never starts CUDA": (T4, "0 (abort(),0)", {"gpus": 1}),
    "libcuda where NVML fails": (T4, "9 0", {**SLICE, "gpus": 1, "source": "libcuda"}),
    "libcuda where MIG is on": (SLICED, "0 0", SLICE),
    "libcuda where a slice is named": (A100, "0 0 MIG-5", SLICE),
    "both fail": (T4, "18 999", {"accelerator": "", "note": FAILED}),
    "CUDA without a device": (T4, "9 100", {"accelerator": "", "note": "CUDA finds no GPU."}),
}
TELL = "import dataclasses as d, json, hf_efficient.machine as m; print(json.dumps(d.asdict(m.this_machine())))"


@pytest.mark.launch
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc to compile a fake driver")
@pytest.mark.parametrize(("installed", "setting", "expected"), READINGS.values(), ids=READINGS)
def test_driver_is_read(tmp_path: Path, installed: str, setting: str, expected: dict[str, Any]) -> None:
    """A new process reads its GPUs from NVML as CUDA_VISIBLE_DEVICES leaves them, and else from libcuda."""
    nvml, cuda, mask = f"{setting} ".split(" ", 2)
    for name, source, code in (("libnvidia-ml.so.1", NVML, nvml), ("libcuda.so.1", CUDA, cuda)):
        (tmp_path / "fake.c").write_text(f"#include <stdlib.h>\n{source}")
        macros = [f"-DCODE={code}", f"-DCARDS={installed}"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", name, *macros, "fake.c"], cwd=tmp_path, check=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    env |= {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env |= {"CUDA_VISIBLE_DEVICES": mask.strip()} if mask else {}
    told = json.loads(subprocess.run([sys.executable, "-c", TELL], env=env, stdout=subprocess.PIPE, check=True).stdout)
    assert {key: told[key] for key in expected} == expected
    assert ("The cards differ" in told["note"]) == (installed == MIXED and told["gpus"] == 2)
    assert ("CUDA_DEVICE_ORDER=PCI_BUS_ID" in told["note"]) == (mask.strip() == "0")

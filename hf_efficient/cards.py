"""Ten NVIDIA GPUs, each with the figures that NVIDIA itself publishes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hf_efficient.wording import listed, nearest


class Card(NamedTuple):
    """One GPU model: what its NVIDIA document says, and how much memory nvidia-smi shows on it."""

    name: str
    capability: tuple[int, int]
    memory_mib: int
    """Total that nvidia-smi reports, in MiB; a recent driver, and the least where drivers differ on that board."""
    bandwidth_gb_s: float
    """Memory bandwidth, 1e9 bytes/s."""
    peak_tflops: Mapping[str, float]
    """Dense 1e12 FLOP/s per dtype: 16-bit and TF32 on Tensor Cores that accumulate in fp32, float32 without them."""
    driver_names: tuple[str, ...]
    """What NVML calls the boards for which these figures hold, and no other."""
    source: str
    """Document, board and address."""


def _rates(*, float32: float, tf32: float = 0.0, float16: float, bfloat16: float = 0.0) -> Mapping[str, float]:
    rates = {"float32": float32, "tf32": tf32, "float16": float16, "bfloat16": bfloat16}
    return {dtype: rate for dtype, rate in rates.items() if rate}


_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100_RATES = _rates(float32=19.5, tf32=156.0, float16=312.0, bfloat16=312.0)

# The H100 and H200 datasheets print only rates with sparsity (989 and 1,979) and say that dense ones are half of them.
_HOPPER_RATES = _rates(float32=67.0, tf32=494.5, float16=989.5, bfloat16=989.5)

CARDS: tuple[Card, ...] = (
    Card(
        name="T4",
        capability=(7, 5),
        memory_mib=15360,
        bandwidth_gb_s=320.0,  # the T4 datasheet rounds to 300; 256 bits at 10 Gbit/s are 320
        peak_tflops=_rates(float32=8.1, float16=65.0),
        driver_names=("Tesla T4",),
        source="NVIDIA Turing GPU Architecture whitepaper, Tesla T4 (PCIe), https://images.nvidia.com/aem-dam/en-zz/"
        "Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf",
    ),
    Card(
        name="V100-16GB",
        capability=(7, 0),
        memory_mib=16160,  # 16384 with the newest drivers
        bandwidth_gb_s=900.0,
        peak_tflops=_rates(float32=15.7, float16=125.0),  # the PCIe board has 14 and 112
        driver_names=("Tesla V100-SXM2-16GB",),
        source="NVIDIA V100 datasheet, SXM2, https://images.nvidia.com/content/technologies/volta/pdf/"
        "volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    Card(
        name="A10",
        capability=(8, 6),
        memory_mib=23028,
        bandwidth_gb_s=600.0,
        peak_tflops=_rates(float32=31.2, tf32=62.5, float16=125.0, bfloat16=125.0),
        driver_names=("NVIDIA A10",),
        source="NVIDIA A10 datasheet, PCIe, "
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf",
    ),
    Card(
        name="L4",
        capability=(8, 9),
        memory_mib=23034,
        bandwidth_gb_s=300.0,
        peak_tflops=_rates(float32=30.3, tf32=60.0, float16=121.0, bfloat16=121.0),  # printed 120 and 242: sparse
        driver_names=("NVIDIA L4",),
        source="NVIDIA L4 datasheet, PCIe, https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652",
    ),
    Card(
        name="RTX 3090",
        capability=(8, 6),
        memory_mib=24268,  # 24576 with the newest drivers
        bandwidth_gb_s=936.0,
        peak_tflops=_rates(float32=35.6, tf32=35.6, float16=71.0, bfloat16=71.0),  # fp16 accumulation would be 142
        driver_names=("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        source="NVIDIA Ampere GA102 GPU Architecture whitepaper V2, Appendix A, "
        "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    ),
    Card(
        name="RTX 4090",
        capability=(8, 9),
        memory_mib=24564,
        bandwidth_gb_s=1008.0,
        peak_tflops=_rates(float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2),  # fp16 accumulation: 330.3
        driver_names=("NVIDIA GeForce RTX 4090",),
        source=f"NVIDIA Ada GPU Architecture whitepaper V2.1, Appendix A, {_ADA}",
    ),
    Card(
        name="A100-40GB",
        capability=(8, 0),
        memory_mib=40960,
        bandwidth_gb_s=1555.0,
        peak_tflops=_A100_RATES,
        # The datasheet gives both 40 GB boards the same rates and bandwidth; that is not so at 80 GB.
        driver_names=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        source=f"NVIDIA A100 datasheet, 40GB SXM and PCIe, {_A100}",
    ),
    Card(
        name="H100-80GB",
        capability=(9, 0),
        memory_mib=81559,
        bandwidth_gb_s=3350.0,
        peak_tflops=_HOPPER_RATES,
        driver_names=("NVIDIA H100 80GB HBM3",),  # the PCIe board is "NVIDIA H100 PCIe", and slower
        source="NVIDIA H100 datasheet, SXM, https://resources.nvidia.com/en-us-tensor-core/"
        "nvidia-tensor-core-gpu-datasheet",
    ),
    Card(
        name="A100-80GB",
        capability=(8, 0),
        memory_mib=81920,
        bandwidth_gb_s=2039.0,  # the PCIe board has 1935
        peak_tflops=_A100_RATES,
        driver_names=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        source=f"NVIDIA A100 datasheet, 80GB SXM, {_A100}",
    ),
    Card(
        name="H200",
        capability=(9, 0),
        memory_mib=143771,
        bandwidth_gb_s=4800.0,
        peak_tflops=_HOPPER_RATES,
        driver_names=("NVIDIA H200",),  # the PCIe board is "NVIDIA H200 NVL", and slower
        source="NVIDIA H200 datasheet, SXM, "
        "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446",
    ),
)
"""Smallest memory first."""


def _spelling(name: str) -> str:
    """Return a name without what people leave out: case, separators and the maker's prefixes."""
    return re.sub(r"^(nvidia|geforce|tesla)+", "", re.sub(r"[\s_-]+", "", name).lower())


def find(name: str) -> Card:
    """Return the card of that name, or of that driver name, in any spelling.

    ValueError where the name leaves open which card it is, or where the table has no such card.
    """
    wanted = _spelling(name)
    for card in CARDS:
        if wanted in map(_spelling, (card.name, *card.driver_names)):
            return card
    begun = [card.name for card in CARDS if wanted and _spelling(card.name).startswith(wanted)]
    if begun:
        raise ValueError(
            f"The GPU {name!r} is not one card, because cards whose name begins so differ in memory and speed: "
            f"write {listed(begun, 'or')}."
        )
    close = nearest(wanted, [card.name for card in CARDS])
    raise ValueError(
        f"There is no GPU {name!r} in the table, because it holds only cards whose published figures were looked up: "
        f"write {listed((card.name for card in CARDS), 'or')}{f' (the nearest is {close})' if close else ''}."
    )


def reported_as(driver_name: str) -> Card | None:
    """Return the card whose figures hold for the board that NVML calls so, or None."""
    return next((card for card in CARDS if driver_name in card.driver_names), None)

"""The GPUs of cards.toml, each with the figures that its maker publishes, and how to find one by name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from hf_efficient.wording import listed

CHOICES = 4
"""As many names as an error lists; for more it names the command that shows them."""
LIST = "`hf-efficient list gpus`"


class Card(NamedTuple):
    """One GPU model: what its maker's document says, and how much memory nvidia-smi shows on it."""

    name: str
    memory_mib: int
    """Total that nvidia-smi reports, in MiB; a recent driver, and the least where drivers differ on that board."""
    bandwidth_gb_s: float
    """Memory bandwidth, 1e9 bytes/s."""
    link_gb_s: float
    """From one GPU to another, per direction, nominal, 1e9 bytes/s: NVLink where the board has it, else PCIe."""
    host_link_gb_s: float
    """Between the GPU and the host, per direction, nominal, 1e9 bytes/s: PCIe."""
    peak_tflops: Mapping[str, float]
    """Dense 1e12 FLOP/s per dtype: 16-bit and TF32 on Tensor Cores that accumulate in fp32, float32 without them."""
    source: str
    """Document, board and address."""
    driver_names: tuple[str, ...]
    """What the driver (NVML, ROCm) calls the boards for which these figures hold, and no other."""
    shared_names: tuple[str, ...]
    """What the driver calls these boards and others, which differ in memory."""
    capability: tuple[int, int]
    """CUDA compute capability; (0, 0) where the card has none."""
    accelerator: str = "cuda"
    """`cuda`, or `rocm` for AMD's."""


def _table() -> tuple[Card, ...]:
    data = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
    return tuple(_card(data["documents"], **row) for row in data["cards"])


def _card(documents: Mapping[str, Mapping[str, str]], *, document: str, board: str, **row: Any) -> Card:
    major, minor = row.pop("capability", (0, 0))
    return Card(
        source=f"{documents[document]['title']}, {board}, {documents[document]['address']}",
        driver_names=tuple(row.pop("driver_names", ())),
        shared_names=tuple(row.pop("shared_names", ())),
        capability=(major, minor),
        **row,
    )


CARDS = _table()
"""Smallest memory first."""


def _spelling(name: str) -> str:
    """Return a name without what people leave out: case, separators and the makers' prefixes."""
    return re.sub(r"^(nvidia|geforce|tesla|amd|instinct)+", "", re.sub(r"[\s_-]+", "", name).lower())


def find(name: str) -> Card:
    """Return the card of that name, or of that driver name, in any spelling.

    ValueError where the name leaves open which card it is, or where the table has no such card.
    """
    wanted = _spelling(name)
    for card in CARDS:
        if wanted in map(_spelling, (card.name, *card.driver_names)):
            return card
    # Ti and Super are other models, not more of one: RTX 4070 does not leave open whether it is RTX 4070 Ti Super.
    begun = rf"{re.escape(wanted)}(?!ti|super)" if wanted else "$."
    if choices := [card.name for card in CARDS if re.match(begun, _spelling(card.name))]:
        many = len(choices) > CHOICES
        raise ValueError(
            f"The GPU {name!r} is not one card, because cards whose name begins so differ in memory and speed: "
            f"write {f'one of the {len(choices)} that {LIST} shows' if many else listed(choices, 'or')}."
        )
    names = {_spelling(card.name): card.name for card in CARDS}
    close = [names[spelled] for spelled in get_close_matches(wanted, names)]
    near = f"the nearest {'are' if len(close) > 1 else 'is'} {listed(close)}, and " if close else ""
    raise ValueError(
        f"There is no GPU {name!r} in the table, because it holds only cards whose published figures were looked up: "
        f"{near}{LIST} shows all."
    )


def reported_as(driver_name: str, memory_mib: float) -> Card | None:
    """Return the card whose figures hold for the board that the driver calls so, or None.

    The memory counts where boards that differ have one name; a tenth more or less is ECC and what drivers reserve.
    """
    for card in CARDS:
        shared = driver_name in card.shared_names and abs(memory_mib / card.memory_mib - 1) < 0.1
        if shared or driver_name in card.driver_names:
            return card
    return None

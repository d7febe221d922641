"""The machine of a setup: a card's figures beside its name, for the checks that ask for them."""

from __future__ import annotations

import platform

from hf_efficient.reading.settings import UNKNOWN, Settings


def machine_settings(machine: Settings) -> Settings:
    """Return the machine with capability (a list of two), memory_gib and accelerator of its card, if that is known."""
    capability = machine.get("capability")
    plain = isinstance(capability, list | tuple) and all(isinstance(part, int) for part in capability)
    values = {"capability": list(capability)} if plain else {"capability": UNKNOWN}
    if machine.text("gpu"):
        from hf_efficient.cards import find

        try:
            card = find(machine.text("gpu"))
        except ValueError:
            card = None  # a card that the table lacks, or a name that means several: its figures are unknown
        if card:
            facts = {"accelerator": card.accelerator, "memory_gib": card.memory_mib / 1024}
            facts |= {"capability": list(card.capability)} if card.accelerator == "cuda" else {}
            values = facts | {key: value for key, value in values.items() if value is not UNKNOWN}
    own = {key: value for key, value in machine.values.items() if key != "capability"}
    return Settings(values | own, place=machine.place, places=machine.places, open=machine.open)


def of_card(name: str) -> Settings:
    """Return the machine with that card; how many there are is unknown. Raises ValueError for an unknown card."""
    from hf_efficient.cards import find

    return machine_settings(Settings({"gpu": find(name).name}))


def at_hand() -> Settings:
    """Return this machine, as far as it has a GPU; without one the machine that trains is another, and unknown."""
    from hf_efficient.gpu import read_gpus

    if platform.system() == "Linux" and not read_gpus().gpus:
        return Settings()  # most of a machine takes longer to read than the files do
    from hf_efficient.machine import this_machine

    machine = this_machine()
    if not machine.accelerator:
        return Settings()
    values = {
        "gpu": machine.gpu,
        "accelerator": machine.accelerator,
        "memory_gib": machine.memory_gib,
        "gpus": machine.gpus,
    }
    known = {"capability": list(machine.capability)} if machine.capability > (0, 0) else {}
    return Settings(values | known)

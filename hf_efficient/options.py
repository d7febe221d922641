"""What several commands share: their options, the machine they are about, and words or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hf_efficient.machine import Machine

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Presets and tricks, such as lean 'zero(3)'.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NAME", help="Leave a trick out (repeatable).")]
Gpu = Annotated[
    str | None, typer.Option("--gpu", help="A card instead of this machine, such as rtx4090; see list gpus.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str, typer.Option("--model", metavar="M", help="Hub id or folder; its config.json is enough.")]


def machine_at(gpu: str | None) -> Machine:
    """Return the machine with that card, or the one at hand. Raises ValueError for a card that the table lacks."""
    from hf_efficient.machine import Machine, this_machine

    return Machine.named(gpu) if gpu else this_machine()


def show(data: Any, as_json: bool, rendered: Any) -> None:
    """Print data as JSON, or as `rendered` prints them."""
    if as_json:
        print_json(data)
    else:
        rendered(data)


def print_json(data: Any) -> None:
    """Print data as JSON that a person can read too."""
    print(json.dumps(data, indent=2, ensure_ascii=False))

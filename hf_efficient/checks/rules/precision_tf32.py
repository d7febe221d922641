"""TF32 switches: two APIs of torch that do not know of each other, and switches that disagree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_places import capability_below, without_gpu
from hf_efficient.finding import Finding, Place, error, warning
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

MATMUL = "torch.backends.cuda.matmul.allow_tf32"
CUDNN = "torch.backends.cudnn.allow_tf32"
NEW = ("torch.backends.fp32_precision", "torch.backends.cuda.matmul.fp32_precision")


class Switch(NamedTuple):
    """One use of a switch in a script."""

    name: str
    value: Any
    """What is written; UNKNOWN where that cannot be known; None for a reader."""
    place: Place

    @property
    def written(self) -> bool:
        """Is it written, and not read?"""
        return self.value is not None


def switches(script: Script) -> list[Switch]:
    """Return the script's uses of both APIs, in the order of their lines."""
    found = []
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    found.append(Switch(script.full_name(dotted(target)), script.value(node.value), script.place(node)))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.append(Switch(script.full_name(dotted(node)), None, script.place(node)))
    for call in script.named("set_float32_matmul_precision"):
        value = call.args[0] if call.args else call.keywords.get("precision", UNKNOWN)
        found.append(Switch("set_float32_matmul_precision", value, call.place))
    for call in script.named("get_float32_matmul_precision"):
        found.append(Switch("torch.get_float32_matmul_precision()", None, call.place))
    return sorted(found, key=lambda one: one.place.line)


def legacy_on(found: list[Switch]) -> bool:
    """Does the script turn TF32 on by the old switches, or may it?"""
    names = ("set_float32_matmul_precision", MATMUL)
    return any(one.written and one.name in names and one.value not in ("highest", False) for one in found)


def newly_on(setup: Setup, found: list[Switch]) -> tuple[str, Place] | None:
    """Return what turns TF32 on by the new switch: the arguments, torch_compile by itself, or the script."""
    trainer = setup.trainer or NOTHING
    if trainer.on("tf32"):
        return "tf32=True", trainer.where("tf32")
    if trainer.on("torch_compile") and trainer.get("tf32") is None and trainer.off("fp16"):
        return "torch_compile=True, which turns TF32 on by itself,", trainer.where("torch_compile")
    for one in found:
        if one.name in NEW and one.value == "tf32":
            return f'{one.name} = "tf32"', one.place
    return None


@check({"torch": ">=2.9", "transformers": ">=5.0"}, seen="ran on CPU")
def tf32_old_switch_read(setup: Setup) -> Iterator[Finding]:
    """Find a script that reads the old TF32 switches after the new one was set.

    Since torch 2.9 there are torch.backends.fp32_precision and its parts beside allow_tf32 and
    set_float32_matmul_precision. TrainingArguments(tf32=True), and torch_compile where tf32 is not given, set the new
    one (transformers/utils/import_utils.py, enable_tf32). Reading torch.get_float32_matmul_precision() or
    torch.backends.cuda.matmul.allow_tf32 then raises RuntimeError ("mix of the legacy and new APIs", tried with torch
    2.13); after tf32=False the same holds for torch.backends.cudnn.allow_tf32. Where the script also calls
    torch.set_float32_matmul_precision("high"), or sets allow_tf32 to True, both agree and nothing raises.
    """
    script, trainer = setup.script, setup.trainer or NOTHING
    if script is None or without_gpu(setup) or capability_below(setup.machine, 8):
        return
    found = switches(script)
    on, off = newly_on(setup, found), trainer.get("tf32") is False
    refused = (
        [MATMUL, "torch.get_float32_matmul_precision()"] if on and not legacy_on(found) else [CUDNN] if off else []
    )
    start = _read_in(script, on[1] if on else trainer.where("tf32"))
    for one in found:
        if not one.written and one.name in refused and start.file == one.place.file and 0 < start.line < one.place.line:
            yield error(
                f"{one.name} is read after {on[0] if on else 'tf32=False'}",
                why="That sets the new switch, torch.backends.fp32_precision, and torch raises RuntimeError for a"
                " reader of the legacy"
                " one: mix of the legacy and new APIs.",
                fix="Read torch.backends.fp32_precision (or torch.backends.cuda.matmul.fp32_precision) instead, or call"
                ' torch.set_float32_matmul_precision("high") first, which sets both.',
                at=one.place,
            )


def _read_in(script: Script, place: Place) -> Place:
    """Return where an argument takes effect in the script: of one told on the command line, where that is parsed."""
    parsed = [call.place for call in script.calls if call.method.startswith("parse_args")]
    return parsed[0] if place.file != script.file and parsed else place


@check({"torch": ">=2.9,<2.10", "transformers": ">=5.0"}, seen="report")
def tf32_switches_mixed_under_compile(setup: Setup) -> Iterator[Finding]:
    """Find TF32 by the new switch together with torch.compile on torch 2.9, whose inductor reads the old one.

    transformers 5 sets torch.backends.fp32_precision for tf32=True, and for torch_compile where tf32 is not given;
    accelerate sets torch.backends.cuda.matmul.allow_tf32 when dynamo is on without autocast (accelerate/state.py); and
    torch 2.9's inductor reads the old switch. Mixed, they raise RuntimeError while compiling.
    torch.set_float32_matmul_precision("high") sets both and ends the mixture. Not meant: newer releases of torch.
    """
    trainer, script = setup.trainer or NOTHING, setup.script
    found = switches(script) if script is not None else []
    compiled = trainer.on("torch_compile") or (setup.model or NOTHING).on("compiled")
    on = newly_on(setup, found)
    if on is None or not compiled or legacy_on(found) or without_gpu(setup) or capability_below(setup.machine, 8):
        return
    yield warning(
        f"{on[0]} with torch.compile on torch 2.9 mixes the new and the legacy TF32 switch",
        why="transformers sets torch.backends.fp32_precision; torch 2.9's inductor reads the legacy allow_tf32,"
        " and torch raises"
        " RuntimeError where the two are mixed.",
        fix='Call torch.set_float32_matmul_precision("high") after TrainingArguments (it sets both switches) and'
        " leave tf32 out, or use"
        " torch 2.10 or newer.",
        at=on[1],
    )


@check({"torch": ">=2.9", "transformers": ">=5.0"}, seen="ran on CPU")
def tf32_switches_disagree(trainer: Settings, script: Script, setup: Setup) -> Iterator[Finding]:
    """Find a script whose own TF32 switch says otherwise than its tf32 argument.

    The old switches (torch.set_float32_matmul_precision, torch.backends.cuda.matmul.allow_tf32) set the precision of
    matmul itself, TrainingArguments(tf32=...) only the general torch.backends.fp32_precision above it. The special one
    wins whatever the order (tried with torch 2.13: "highest" and then tf32=True leaves matmul at "ieee").
    """
    if trainer.get("tf32") not in (True, False) or without_gpu(setup) or capability_below(setup.machine, 8):
        return
    asked = trainer.on("tf32")
    for one in switches(script):
        name = one.name.removeprefix("torch.backends.cuda.")
        turns = {"highest": False, "high": True, "medium": True, True: True, False: False}
        known = one.written and one.value is not UNKNOWN and isinstance(one.value, str | bool)
        if (
            not known
            or one.name not in ("set_float32_matmul_precision", MATMUL)
            or turns.get(one.value, asked) is asked
        ):
            continue
        yield warning(
            f"{name} says {one.value!r}, but the arguments say tf32={asked}",
            why=f"The script's switch wins for matrix products: they run {'without' if asked else 'in'} TF32,"
            f" whatever tf32 says.",
            fix=f'Keep one: torch.set_float32_matmul_precision("{"high" if asked else "highest"}"), or'
            f" tf32={asked} alone.",
            at=one.place,
        )

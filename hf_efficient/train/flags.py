"""The flags of a recipe: what to train on what, by which plan, and every field of TrainingArguments by its own name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.train.ranges import check_ranges
from hf_efficient.wording import nearest, one_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import TrainingArguments


class Flags(NamedTuple):
    """What stands on a recipe's command line; `given` holds the fields of TrainingArguments that were given."""

    model: str | None
    data: str | None
    plan: tuple[str, ...]
    without: tuple[str, ...]
    seq_len: int | None
    given: Mapping[str, Any]


def read_flags(args_class: type[TrainingArguments], argv: Sequence[str] | None = None, *, doc: str = "") -> Flags:
    """Read a recipe's command line. Raises ValueError, with the nearest flag, for one that there is not."""
    parser = _parser(args_class, doc)
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ValueError(_unknown_flag(parser, unknown[0]))
    given = vars(found)
    check_ranges(given)
    own = {name: given.pop(name, None) for name in ("model", "data", "plan", "without", "seq_len")}
    if own["seq_len"] is not None and own["seq_len"] < 2:
        raise ValueError(f"--seq-len must be at least 2 tokens, not {own['seq_len']}.")
    own |= {name: tuple(own[name] or ()) for name in ("plan", "without")}
    return Flags(given=given, **own)


def recipe_plan(flags: Flags) -> Plan:
    """Return the plan of a recipe's command line, without one the preset for this machine, and print what was decided.

    Printed once, by the first process, before anything takes time.
    """
    from hf_efficient.emit.here import training_machine

    machine = training_machine()
    names, note = flags.plan, []
    if not names:
        name, why = default_preset(machine)
        names, note = (name,), [f"Preset {name}: {why}. Choose another with --plan."]
    plan = make_plan(*names, without=flags.without, machine=machine).note(*note)
    if os.environ.get("RANK", "0") == "0":
        print(
            *(f"{name:<8}{text}" for name, text in [("plan:", " ".join(names)), *(("", n) for n in plan.notes)]),
            sep="\n",
        )
    return plan


def default_preset(machine: Machine) -> tuple[str, str]:
    """Return the preset that a recipe takes on `machine` when nobody names one, and why."""
    if not machine.accelerator:
        return "cpu", "there is no accelerator here"
    if machine.accelerator != "cuda":
        return "safe", f"{machine.gpu or machine.accelerator} is no NVIDIA GPU, for which the others are made"
    if machine.capability < (8, 0):
        return "turing", f"{machine.gpu} has no bf16"
    return "fast", f"{machine.gpu} has bf16"


@contextmanager
def one_sentence_errors() -> Iterator[None]:
    """End the script with one sentence and exit code 2 when what was asked for cannot be; other errors pass.

    Put around what is built from flags, not around the training: an error in there needs its traceback.
    """
    try:
        yield
    except (ValueError, ImportError, OSError, TypeError) as error:
        print(f"error: {one_sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _parser(args_class: type[TrainingArguments], doc: str) -> argparse.ArgumentParser:
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise ValueError(f"{message.rstrip('.')}.")

    # No abbreviations: `--max` would silently become one of many flags.
    parser = Parser(
        args_class, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    group = parser.add_argument_group("what to train, and how")
    group.add_argument("--model", help="Hub id or folder; default: a small Llama made here")
    group.add_argument(
        "--data", help="Hub id, file (.jsonl .csv .parquet .txt) or folder; default: Python's own sources"
    )
    group.add_argument(
        "--plan", nargs="+", action="extend", metavar="NAME", help="presets and tricks, such as lean 'zero(3)'"
    )
    group.add_argument("--without", nargs="+", action="extend", metavar="NAME", help="tricks to leave out of the plan")
    group.add_argument(
        "--seq-len", "--seq_len", type=int, help="longest row in tokens; default 128 for the small Llama, else 512"
    )
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only what was given is an argument of yours
    return parser


def _unknown_flag(parser: argparse.ArgumentParser, flag: str) -> str:
    from hf_efficient.renames import explain

    name = flag.split("=")[0]
    if not name.startswith("-"):
        return f"{name!r} belongs to no flag: write --model, --data, --plan or a field of TrainingArguments before it."
    told = explain(name.lstrip("-").replace("-", "_"))
    close = nearest(name, [option for action in parser._actions for option in action.option_strings])
    return f"There is no flag {name}: {told or (f'did you mean {close}?' if close else 'see --help.')}"

"""What argparse makes of a command line: the defaults that a script gives its options, and what it is told."""

from __future__ import annotations

from typing import Any

from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import UNKNOWN, Settings

SWITCHES = {"store_true": False, "store_false": True}
"""Actions without a value, and what they leave an option at."""
PLAIN = ("int", "float", "str", "bool", "None")
"""Types whose values are those of the words themselves; another one makes of them what cannot be seen."""


def parsed(script: Script, told: Settings) -> dict[str, Any]:
    """Return what `parser.parse_args()` gives under a command line, option by option; UNKNOWN where that is unclear.

    Empty where the script adds no options by itself.
    """
    options = [call for call in script.calls if call.method == "add_argument"]
    held: dict[str, Any] = {}
    for call in options:
        name = _destination(call)
        if name:
            value = _value(script, call, name, told)
            held[name] = value if name not in held else UNKNOWN
    if script.named("set_defaults"):
        return {name: told.get(name) if name in told else UNKNOWN for name in held}
    return held


def _destination(call: Call) -> str:
    """Return the attribute that an option is read by."""
    given = call.keywords.get("dest")
    flags = [arg for arg in call.args if isinstance(arg, str)]
    long = [flag for flag in flags if flag.startswith("--")] or [flag for flag in flags if flag.startswith("-")]
    name = given if isinstance(given, str) else long[0] if long else ""
    return name.lstrip("-").replace("-", "_")


def _value(script: Script, call: Call, name: str, told: Settings) -> Any:
    action, kind = call.keywords.get("action"), script.source_of(call.expressions.get("type"))
    flags = {arg.lstrip("-").replace("-", "_") for arg in call.args if isinstance(arg, str)}
    said = [flag for flag in flags if flag in told]
    if said:
        value = told.get(said[0])
        if action in SWITCHES:
            return not SWITCHES[str(action)]
        if kind in ("str", "") and not isinstance(value, str) and action is None and "nargs" not in call.keywords:
            return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else UNKNOWN
        return value if kind in PLAIN and kind != "bool" else UNKNOWN
    if told.open or call.open or call.keywords.get("required") is True:
        return UNKNOWN
    if action in SWITCHES:
        return call.keywords.get("default", SWITCHES[str(action)])
    return call.keywords.get("default")

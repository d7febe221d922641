"""The line of every key of a JSON text, keys that stand twice, and what JSON does not allow."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field

from hf_efficient.reading.yaml_lines import Keys

TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
NOISE = re.compile(
    r'(?P<text>"[^"\\\n]*(?:\\.[^"\\\n]*)*")|(?P<comment>//[^\n]*|/\*.*?\*/|#[^\n]*)|(?P<comma>,(?=\s*[}\]]))'
    r"|(?P<quote>'[^'\n]*')|(?P<word>\b(?:True|False|None)\b)",
    re.DOTALL,
)
KINDS = {
    "comment": "comments",
    "comma": "a comma before a closing bracket",
    "quote": "strings in single quotes",
    "word": "Python's True, False or None instead of true, false or null",
}


@dataclass
class _Block:
    path: str
    mapping: bool
    seen: dict[str, int] = field(default_factory=dict)
    key: str = ""
    before_value: bool = False


def lines_of(text: str) -> Keys:
    """Return the keys of a text that json.loads accepts. Keys inside lists have no path."""
    ends = [found.start() for found in re.finditer("\n", text)]
    keys, stack = Keys(), [_Block("", False)]
    for token in TOKEN.finditer(text):
        piece, block = token.group(), stack[-1]
        if piece in "{[":
            named = block.mapping and block.path != "?"
            path = f"{block.path}{block.key}." if named else "" if len(stack) == 1 and piece == "{" else "?"
            stack.append(_Block(path, piece == "{"))
            keys.depth = max(keys.depth, len(stack))
        elif piece in "}]" and len(stack) > 1:
            stack.pop()
        elif piece == ":":
            block.before_value = True
        elif piece == ",":
            block.before_value = False
        elif block.mapping and not block.before_value and piece[0] == '"':
            _key(block, json.loads(piece), bisect_right(ends, token.start()) + 1, keys)
    return keys


def _key(block: _Block, name: str, line: int, keys: Keys) -> None:
    block.key = name
    path = f"{block.path}{name}" if block.path != "?" else name
    if name in block.seen:
        keys.twice.append((path, block.seen[name], line))
    block.seen[name] = line
    if block.path != "?":
        keys.lines[path] = line


def damage(text: str) -> str:
    """Return what a text has that JSON does not allow, in words, or an empty string."""
    for found in NOISE.finditer(text):
        if found.lastgroup in KINDS:
            return KINDS[found.lastgroup]
    return ""

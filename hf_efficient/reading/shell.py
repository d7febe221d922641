"""A shell script as the commands that it would run, with simple variables put in; nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from hf_efficient.reading.tokens import NAME, Lexer, Piece, Token

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
DECLARING = ("export", "declare", "typeset", "local", "readonly", "setenv")
OPENING = frozenset({"if", "while", "until", "case", "{"})
CLOSING = frozenset({"fi", "done", "esac", "}"})
LEADING = frozenset({"then", "do", "else", "elif", "!"}) | OPENING
LONGEST = 10_000
"""Characters of one variable, and words of one command: what grows beyond is unknown."""


class Word(NamedTuple):
    """A word of a command; `known` is false where a variable in it cannot be known, `many` where it may be several."""

    text: str
    line: int = 0
    known: bool = True
    many: bool = False
    raw: str = ""


@dataclass(frozen=True)
class Statement:
    """One simple command: its words, and the environment's variables that the script gives it."""

    words: tuple[Word, ...]
    env: dict[str, Word]


def statements(text: str) -> Iterator[Statement]:
    """Yield the simple commands of a script in the order of its text; at last one without words, with all exports."""
    shell = _Shell()
    words: list[Token] = []
    dropped = False
    for token in Lexer(text).tokens():
        if token.op in (">", ">&"):
            words = words[:-1] if words and token.raw and words[-1].literal == token.raw else words
            dropped = token.op == ">"
        elif token.op:
            yield from shell.run(words)
            words, dropped = [], False
        elif dropped:
            dropped = False
        else:
            words.append(token)
    yield from shell.run(words)
    yield Statement((), shell.environment())


class _Shell:
    """The variables of a script while it is read from top to bottom."""

    def __init__(self) -> None:
        self.variables: dict[str, list[Word]] = {}
        self.exported: dict[str, int] = {}
        self.depth = 0

    def run(self, tokens: list[Token]) -> Iterator[Statement]:
        """Carry out assignments and exports; yield what is another command."""
        tokens = self._without_keywords(tokens)
        own: dict[str, Word] = {}
        start = 0
        while start < len(tokens) and (given := self._assignment(tokens[start])):
            name, words = given
            own[name] = words[0] if len(words) == 1 else Word("", tokens[start].line, False)
            if len(tokens) == start + 1 or all(self._assignment(token) for token in tokens[start:]):
                self._set(name, words)
            start += 1
        rest = tokens[start:]
        if not rest:
            return
        if rest[0].literal in DECLARING:
            self._declare(rest)
        elif rest[0].literal == "unset":
            for token in rest[1:]:
                self.variables.pop(token.literal, None)
                self.exported.pop(token.literal, None)
        else:
            command = tuple(islice((word for token in rest for word in self.expanded(token)), LONGEST))
            yield Statement(command, self.environment() | own)

    def expanded(self, token: Token) -> list[Word]:
        """Return the words that a token becomes: unquoted variables split at spaces, arrays become their words."""
        if token.array is not None:
            return [Word("", token.line, False, True, token.raw)]
        made = [Word("", token.line)]
        for piece in token.pieces:
            words = [Word(piece.text)] if piece.text is not None else self._value(piece)
            if not words:
                continue
            first, last = words[0], made[-1]
            made[-1] = Word(last.text + first.text, token.line, last.known and first.known, last.many or first.many)
            made += [word._replace(line=token.line) for word in words[1:]]
        alone = len(token.pieces) == 1 and token.pieces[0].text is None and not token.pieces[0].quoted
        if alone and len(made) == 1 and made[0].known and not made[0].text:
            return []
        return [made[0]._replace(raw=token.raw)] if len(made) == 1 else made

    def _value(self, piece: Piece) -> list[Word]:
        """Return what a variable stands for where it is used; no words for an empty array or an empty value."""
        words = self.variables.get(piece.name) if piece.name else None
        if words is None and piece.default is not None:
            words = [Word(piece.default)]
        if words is None:
            return [Word("", known=False, many=not piece.quoted or piece.name.endswith("[@]"))]
        if piece.quoted or piece.name.endswith("[@]"):
            return words
        return [
            word._replace(text=part) for word in words for part in (word.text.split() if word.known else [word.text])
        ]

    def _assignment(self, token: Token) -> tuple[str, list[Word]] | None:
        first = token.pieces[0] if token.pieces else None
        found = ASSIGNMENT.fullmatch(first.text or "") if first and first.text and not first.quoted else None
        if not found:
            return None
        name, more, begun = found.groups()
        if token.array is not None:
            words = [word for one in token.array for word in self.expanded(one)]
            self._set(f"{name}[@]", (self.variables.get(f"{name}[@]", []) if more else []) + words)
            return name, words[:1] or [Word("", token.line)]
        pieces = [Piece(begun, quoted=True), *(piece._replace(quoted=True) for piece in token.pieces[1:])]
        word = self.expanded(Token(token.line, pieces=pieces))[0]
        if more:
            before = self.variables.get(name, [Word("")])
            known = word.known and len(before) == 1 and before[0].known
            word = Word((before[0].text if before else "") + word.text, token.line, known)
        return name, [word]

    def _set(self, name: str, words: list[Word]) -> None:
        """Give a variable its value; inside an `if`, a loop or a function it may not have it later."""
        before = self.variables.get(name)
        same = before is not None and [word.text for word in before] == [word.text for word in words]
        long = len(words) > LONGEST or sum(len(word.text) for word in words) > LONGEST
        if long or (self.depth > 0 and before is not None and not same):
            words = [Word("", known=False, many=True)]
        self.variables[name] = words
        if name in self.exported and words:
            self.exported[name] = words[0].line or self.exported[name]

    def _declare(self, tokens: list[Token]) -> None:
        exports = tokens[0].literal in ("export", "setenv")
        for token in tokens[1:]:
            exports = exports or (token.literal.startswith("-") and "x" in token.literal)
            given = self._assignment(token)
            name = given[0] if given else token.literal if NAME.fullmatch(token.literal) else ""
            if given:
                self._set(*given)
            if exports and name:
                self.exported[name] = token.line

    def environment(self) -> dict[str, Word]:
        """Return what the script has exported by now."""
        found: dict[str, Word] = {}
        for name, line in self.exported.items():
            words = self.variables.get(name) or [Word("", line, False)]
            found[name] = words[0]._replace(line=line) if len(words) == 1 else Word("", line, False)
        return found

    def _without_keywords(self, tokens: list[Token]) -> list[Token]:
        while tokens:
            word = tokens[0].literal
            self.depth = max(0, self.depth + (word in OPENING or word in ("for", "select")) - (word in CLOSING))
            if word in ("for", "select"):
                name = tokens[1].literal if len(tokens) > 1 else ""
                self.variables[name] = [Word("", known=False)]
                return []
            if word == "case":
                return []
            if word not in LEADING and word not in CLOSING:
                return tokens
            tokens = tokens[1:]
        return tokens

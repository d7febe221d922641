"""Shell text as tokens: words in pieces (literal, variable, unknown), and what separates commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z_]\w*")
BRACED = re.compile(r"\{([A-Za-z_]\w*)(\[[@*]\])?(?::?[-=]([^${}`]*))?\}")
HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"]?)([\w.-]+)\2")
REDIRECT = re.compile(r"&>>?|[<>](?:[>|]?&?\d*-?|<)")
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
SPECIAL = "@*#?$!-0123456789"
NESTING = 20


class Piece(NamedTuple):
    """A part of a word: `text` is literal; else `name` is a variable, empty where it cannot be known."""

    text: str | None
    name: str = ""
    default: str | None = None
    quoted: bool = False


@dataclass
class Token:
    """A word, or with `op` a separator of commands."""

    line: int
    op: str = ""
    pieces: list[Piece] = field(default_factory=list)
    raw: str = ""
    array: list[Token] | None = None

    @property
    def literal(self) -> str:
        """Return the word where it is one unquoted literal, else an empty string: keywords and names are."""
        plain = len(self.pieces) == 1 and self.pieces[0].text is not None and not self.pieces[0].quoted
        return self.pieces[0].text or "" if plain else ""


class Lexer:
    """Reads a text once, from left to right. Unbalanced quotes and brackets end with the text."""

    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        self.text, self.at, self.line, self.depth = text, 0, line, depth
        self.heredocs: list[tuple[str, bool]] = []

    def tokens(self, end: str = "") -> Iterator[Token]:
        """Yield the tokens up to the end of the text, or to an unquoted `end`."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end:
                self.at += 1
                return
            if char in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self._over(2)
            elif char == "#":
                self._over(self._find("\n") - self.at)
            elif char == "\n":
                yield Token(self.line, "\n")
                self._over(1)
                self._skip_heredocs()
            elif char in "<>" or self.text.startswith("&>", self.at):
                yield from self._redirect()
            elif char in ";&|()":
                yield Token(self.line, char)
                self.at += 1
            else:
                yield self._word()

    def _word(self) -> Token:
        token, start = Token(self.line), self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|)<>":
                break
            if char == "(":
                if not ARRAY.fullmatch(token.literal) or self.depth > NESTING:
                    break
                token.array = self._array()
                break
            if self.text.startswith("\\\n", self.at):
                self._over(2)
                continue
            token.pieces += self._piece(char)
        token.pieces = _joined(token.pieces)
        token.raw = self.text[start : self.at].replace("\\\n", "").strip("\"'")
        return token

    def _piece(self, char: str) -> list[Piece]:
        if char == "\\":
            self.at += 2
            return [Piece(self.text[self.at - 1 : self.at], quoted=True)]
        if char == "'":
            end = self._find("'", self.at + 1)
            text = self.text[self.at + 1 : end]
            self._over(end + 1 - self.at)
            return [Piece(text, quoted=True)]
        if char == '"':
            return self._quoted()
        if char in "$`":
            return [self._variable(quoted=False)]
        stop = re.compile(r"[\s;&|()<>\\'\"$`]").search(self.text, self.at)
        end = stop.start() if stop else len(self.text)
        text = self.text[self.at : max(end, self.at + 1)]
        self._over(len(text))
        return [Piece(text)]

    def _quoted(self) -> list[Piece]:
        self.at += 1
        pieces: list[Piece] = [Piece("", quoted=True)]
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                pieces.append(Piece("" if after == "\n" else after if after in '$`"\\' else char + after, quoted=True))
                self._over(2)
            elif char in "$`":
                pieces.append(self._variable(quoted=True))
            else:
                stop = re.compile(r'["\\$`]').search(self.text, self.at)
                text = self.text[self.at : stop.start() if stop else len(self.text)]
                pieces.append(Piece(text, quoted=True))
                self._over(len(text))
        self.at += 1
        return pieces

    def _variable(self, *, quoted: bool) -> Piece:
        if self.text[self.at] == "`":
            self._over(self._find("`", self.at + 1) + 1 - self.at)
            return Piece(None, quoted=quoted)
        self.at += 1
        after = self.text[self.at : self.at + 1]
        if after == "(":
            self._over(self._closing("(", ")") - self.at)
            return Piece(None, quoted=quoted)
        if after == "{":
            found = BRACED.match(self.text, self.at)
            self._over((found.end() if found else self._closing("{", "}")) - self.at)
            name, default = (found.group(1) + (found.group(2) or ""), found.group(3)) if found else ("", None)
            return Piece(None, name.replace("*", "@"), default, quoted)
        named = NAME.match(self.text, self.at)
        if named:
            self.at = named.end()
            return Piece(None, named.group(), None, quoted)
        if after and after in SPECIAL:
            self.at += 1
            return Piece(None, "", None, quoted and after != "@")
        return Piece("$", quoted=quoted)

    def _array(self) -> list[Token]:
        inner = Lexer(self.text, self.line, self.depth + 1)
        inner.at = self.at + 1
        found = [token for token in inner.tokens(")") if not token.op]
        self.at, self.line = inner.at, inner.line
        return found

    def _redirect(self) -> Iterator[Token]:
        if heredoc := HEREDOC.match(self.text, self.at):
            self.heredocs.append((heredoc.group(3), bool(heredoc.group(1))))
            self.at = heredoc.end()
            return
        found = REDIRECT.match(self.text, self.at)
        before = self.text[max(0, self.at - 1) : self.at]
        self.at = found.end() if found else self.at + 1
        whole = found is not None and "&" in found.group()[1:] and found.group()[-1] in "0123456789-"
        yield Token(self.line, ">&" if whole else ">", raw=before if before.isdigit() else "")

    def _skip_heredocs(self) -> None:
        for word, dashed in self.heredocs:
            while self.at < len(self.text):
                end = self._find("\n")
                row = self.text[self.at : end]
                self._over(end + 1 - self.at)
                if (row.lstrip("\t") if dashed else row) == word:
                    break
        self.heredocs = []

    def _closing(self, opening: str, closing: str) -> int:
        depth = 0
        for at in range(self.at, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1
        return len(self.text)

    def _find(self, what: str, start: int | None = None) -> int:
        found = self.text.find(what, self.at if start is None else start)
        return len(self.text) if found < 0 else found

    def _over(self, length: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + length)
        self.at += length


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with neighbours of one sort made one."""
    made: list[Piece] = []
    for piece in pieces:
        last = made[-1] if made else None
        if last and last.text is not None and piece.text is not None and last.quoted == piece.quoted:
            made[-1] = Piece(last.text + piece.text, quoted=piece.quoted)
        else:
            made.append(piece)
    return made

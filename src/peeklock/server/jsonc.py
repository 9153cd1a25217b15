"""A parser for JSON with comments that keeps the line of every value, so that later errors can name it.

It accepts `//` and `/* */` comments, and a comma after the last element. Otherwise it is strict: one value, no
duplicate keys, no NaN, no lone surrogates. The standard library's parser keeps no positions. The modules `config*`
check the keys and values.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass

from peeklock.limits.http import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH

_MAX_DIGITS = 32

Scalar = str | int | float | bool | None
PathStep = str | int


class JsonError(ValueError):
    """The text is not valid JSON with comments, at this line and column (both from 1)."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        self.line = line
        self.column = column
        self.problem = problem
        super().__init__(f"line {line}, column {column}: {problem}")


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place: the line of its key if it has one, otherwise its own line."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    path: tuple[PathStep, ...] = ()

    def plain(self) -> object:
        """Return the value as the standard library's parser would return it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def load(text: str) -> Node:
    """Parse one JSON value with comments; JsonError with the place if it is invalid."""
    if len(text) > MAX_CONFIG_BYTES:
        raise JsonError(1, 1, f"the text has {len(text)} characters, more than the {MAX_CONFIG_BYTES} allowed")
    return _Reader(text).document()


_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[^\s,:\[\]{}\"/]+")
_LINE_END = re.compile(r"\r\n|\r|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def document(self) -> Node:
        self._skip_blank()
        node = self._value((), self._line())
        self._skip_blank()
        if self.at < len(self.text):
            raise self._error("there is more text after the end of the value")
        return node

    def _value(self, path: tuple[PathStep, ...], line: int) -> Node:
        match self._peek():
            case "{":
                return Node(self._object(path), line, path)
            case "[":
                return Node(self._array(path), line, path)
            case '"':
                return Node(self._string(), line, path)
            case "":
                raise self._error("the text ends where a value is expected")
            case _:
                return Node(self._literal(), line, path)

    def _object(self, path: tuple[PathStep, ...]) -> dict[str, Node]:
        self._enter(path)
        members: dict[str, Node] = {}
        while not self._closes("}"):
            start, line = self.at, self._line()
            if self._peek() != '"':
                raise self._error('expected a key in double quotes or "}"')
            key = self._string()
            if key in members:
                raise self._error(f"the key {key!r} is already on line {members[key].line}", start)
            self._skip_blank()
            if self._peek() != ":":
                raise self._error(f'expected ":" after the key {key!r}')
            self.at += 1
            self._skip_blank()
            members[key] = self._value((*path, key), line)
            self._separator("}")
        return members

    def _array(self, path: tuple[PathStep, ...]) -> list[Node]:
        self._enter(path)
        elements: list[Node] = []
        while not self._closes("]"):
            elements.append(self._value((*path, len(elements)), self._line()))
            self._separator("]")
        return elements

    def _enter(self, path: tuple[PathStep, ...]) -> None:
        if len(path) >= MAX_CONFIG_DEPTH:
            raise self._error(f"objects and lists are nested more than {MAX_CONFIG_DEPTH} levels deep")
        self.at += 1
        self._skip_blank()

    def _closes(self, bracket: str) -> bool:
        if self._peek() != bracket:
            return False
        self.at += 1
        return True

    def _separator(self, closing: str) -> None:
        """Skip the comma after an element, or check that the closing bracket follows. The caller skips the bracket."""
        self._skip_blank()
        if self._peek() == ",":
            self.at += 1
            self._skip_blank()
        elif self._peek() != closing:
            raise self._error(f'expected "," or "{closing}"')

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self._error("the string is not closed on its line, or contains a control character")
        try:
            value = json.loads(match[0])
        except ValueError:
            raise self._error("the string has an escape that is invalid in JSON") from None
        assert isinstance(value, str)
        if _SURROGATE.search(value):
            raise self._error("the string has half of a UTF-16 surrogate pair")
        self.at = match.end()
        return value

    def _literal(self) -> Scalar:
        word = _WORD.match(self.text, self.at)
        text = word[0] if word else self._peek()
        if text in _LITERALS:
            self.at += len(text)
            return _LITERALS[text]
        number = _NUMBER.fullmatch(text)
        if number is None:
            raise self._error(f"{text[:40]!r} is not a JSON value")
        if len(text) > _MAX_DIGITS:
            raise self._error(f"the number has more than {_MAX_DIGITS} characters")
        self.at += len(text)
        if number[1] is None and number[2] is None:
            return int(text)
        value = float(text)
        if math.isinf(value):
            raise self._error("the number is too large", self.at - len(text))
        return value

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip_blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None  # it matches the empty text
        self.at = match.end()
        if self.text.startswith("/*", self.at):
            raise self._error("the comment is not closed")

    def _line(self) -> int:
        return bisect_right(self.line_starts, self.at)

    def _error(self, problem: str, at: int | None = None) -> JsonError:
        where = self.at if at is None else at
        line = bisect_right(self.line_starts, where)
        return JsonError(line, where - self.line_starts[line - 1] + 1, problem)

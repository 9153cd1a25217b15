"""LIKE: compiles a pattern with the wildcards `%` (any characters) and `_` (one character) to a function of texts.

A pattern is split at each `%` into pieces. The first piece must be at the start of the text, and the last at its end.
Every other piece is matched at its first occurrence after the previous piece, which is correct because `%` matches any
text in between. So the text is scanned once. Only the search for a piece with `_` can cost more, since the piece is
compared at every position. That work has a limit, far above the needs of filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby

from peeklock.broker.rules.errors import EvaluationError
from peeklock.limits.broker import MAX_PATTERN, MAX_PATTERN_WORK

Matcher = Callable[[str], bool]


class PatternError(ValueError):
    """The pattern of LIKE is invalid. `str()` is one sentence."""


class EscapeError(PatternError):
    """The escape character of LIKE is invalid."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, escape: str | None = None) -> Matcher:
    """Compile a pattern to a function that returns whether a text matches.

    The function raises EvaluationError if matching is too much work.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"The pattern of LIKE has {len(pattern)} characters, more than the {MAX_PATTERN} allowed.")
    pieces = _split(pattern, escape)
    if len(pieces) == 1:
        only = pieces[0]
        return only.plain.__eq__ if only.plain is not None else only.is_whole
    first, *middle, last = pieces
    middle = [piece for piece in middle if piece.length]
    # For the usual patterns, methods of strings are faster.
    match first.plain, [piece.plain for piece in middle], last.plain:
        case str(start), [], "":
            return lambda text: text.startswith(start)
        case "", [], str(end):
            return lambda text: text.endswith(end)
        case "", [str(inner)], "":
            return lambda text: inner in text
    return _Pieces(first, middle, last)


def check_escape(escape: object) -> None:
    """Raise EscapeError unless the value can be an escape character."""
    if not isinstance(escape, str):
        raise EscapeError("ESCAPE requires a text of one character.")
    if len(escape) != 1:
        raise EscapeError(f"ESCAPE requires a text of one character, not of {len(escape)}.")


class _Piece:
    """The part of a pattern between two `%`: a sequence of characters, with None for `_`."""

    __slots__ = ("_characters", "_runs", "_search", "length", "plain")

    def __init__(self, characters: Sequence[str | None]) -> None:
        self._characters = characters
        self.length = len(characters)
        self._runs: list[tuple[int, str]] = []
        """Runs of characters without `_` in between, each with its offset in the piece."""
        offset = 0
        for is_any, group in groupby(characters, lambda character: character is None):
            run = [character or "" for character in group]
            if not is_any:
                self._runs.append((offset, "".join(run)))
            offset += len(run)
        self.plain = "".join(run for _, run in self._runs) if None not in characters else None
        """The piece as a text, if it has no `_`."""
        self._search: Callable[[str, int, int], re.Match[str] | None] | None = None

    def is_at(self, text: str, start: int) -> bool:
        """Return whether the piece matches at a position. The text must be long enough."""
        return all(text.startswith(run, start + offset) for offset, run in self._runs)

    def is_whole(self, text: str) -> bool:
        return len(text) == self.length and self.is_at(text, 0)

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first position at which the piece matches between `start` and `end`; -1 if there is none."""
        if start + self.length > end:
            return -1
        if self.plain is not None:
            return text.find(self.plain, start, end)
        if not self._runs:
            return start
        if (end - start) * self.length > MAX_PATTERN_WORK:
            raise EvaluationError("The text is too long for a pattern of LIKE with _ between two %.")
        if self._search is None:
            form = "".join("." if each is None else re.escape(each) for each in self._characters)
            self._search = re.compile(form, re.DOTALL).search
        found = self._search(text, start, end)
        return found.start() if found else -1


class _Pieces:
    """A pattern with at least one `%`: the pieces before, between and after."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self, first: _Piece, middle: list[_Piece], last: _Piece) -> None:
        self._first = first
        self._middle = middle
        self._last = last

    def __call__(self, text: str) -> bool:
        at, end = self._first.length, len(text) - self._last.length
        if at > end or not (self._first.is_at(text, 0) and self._last.is_at(text, end)):
            return False
        for piece in self._middle:
            found = piece.find(text, at, end)
            if found < 0:
                return False
            at = found + piece.length
        return True


def _split(pattern: str, escape: str | None) -> list[_Piece]:
    """Split a pattern at each `%`. A character after the escape character is not a wildcard."""
    if escape is not None:
        check_escape(escape)
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError("The pattern of LIKE ends with its escape character.")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return [_Piece(piece) for piece in pieces]

"""LIKE: a pattern with the wildcards `%` (any run of characters) and `_` (any one), made into a function of texts.

A pattern is cut at its `%` into pieces. The first and the last are tied to the ends of the text; each of the others is
taken where it is first found after the one before, which is right because a `%` can always take up more. So a text
is gone through once, whatever the pattern. Only looking for a piece that has `_` inside could cost more: it is
counted, and given up beyond a limit that nothing but a text made for it reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from peeklock.broker.rules.errors import EvaluationError

MAX_PATTERN = 1024
"""Characters of a pattern. It can come from a message."""
MAX_TRIALS = 1 << 15
"""Places at which one piece is tried."""

Matcher = Callable[[str], bool]


class PatternError(ValueError):
    """The pattern or its escape character cannot be used: one sentence."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, escape: str | None = None) -> Matcher:
    """Whether a text is like the pattern; the function raises EvaluationError if that is too much work."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"The pattern of LIKE has {len(pattern)} characters, more than the {MAX_PATTERN} allowed.")
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        only = pieces[0]
        return only.plain.__eq__ if only.plain is not None else only.is_whole
    first, *middle, last = pieces
    middle = [piece for piece in middle if piece.length]
    # The forms that most patterns have are what strings have methods for.
    match first.plain, [piece.plain for piece in middle], last.plain:
        case str(start), [], "":
            return lambda text: text.startswith(start)
        case "", [], str(end):
            return lambda text: text.endswith(end)
        case "", [str(inner)], "":
            return lambda text: inner in text
    return _Pieces(first, middle, last)


@dataclass(slots=True)
class _Piece:
    """What stands between two `%`: runs of plain characters, each at its offset, with any characters between."""

    length: int
    runs: list[tuple[int, str]]

    @property
    def plain(self) -> str | None:
        """The piece as a text, if it is without `_`."""
        if not self.length:
            return ""
        return self.runs[0][1] if self.runs and len(self.runs[0][1]) == self.length else None

    def is_at(self, text: str, start: int) -> bool:
        """The text is known to be long enough."""
        return all(text.startswith(run, start + offset) for offset, run in self.runs)

    def is_whole(self, text: str) -> bool:
        return len(text) == self.length and self.is_at(text, 0)

    def find(self, text: str, start: int, end: int) -> int:
        """Where the piece is first found in this part of the text; -1 if it is not."""
        if not self.runs:
            return start if start + self.length <= end else -1
        # The longest run is the rarest, as a rule.
        offset, anchor = max(self.runs, key=lambda run: len(run[1]))
        furthest = end - self.length + offset + len(anchor)
        found = text.find(anchor, start + offset, furthest)
        trials = 0
        while found >= 0:
            if len(self.runs) == 1 or self.is_at(text, found - offset):
                return found - offset
            trials += len(self.runs)
            if trials > MAX_TRIALS:
                raise EvaluationError("LIKE gives up: the text has too many places that are almost like the pattern.")
            found = text.find(anchor, found + 1, furthest)
        return -1


@dataclass(slots=True)
class _Pieces:
    """Pieces with a `%` between each two."""

    first: _Piece
    middle: list[_Piece]
    last: _Piece

    def __call__(self, text: str) -> bool:
        at, end = self.first.length, len(text) - self.last.length
        if at > end or not (self.first.is_at(text, 0) and self.last.is_at(text, end)):
            return False
        for piece in self.middle:
            found = piece.find(text, at, end)
            if found < 0:
                return False
            at = found + piece.length
        return True


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    """The pattern between its `%`: one piece if it has none. A character after the escape stands for itself."""
    if escape is not None and len(escape) != 1:
        raise PatternError(f"ESCAPE takes a text of one character, not of {len(escape)}.")
    pieces = [_Piece(0, [])]
    joined = False
    characters = iter(pattern)
    for character in characters:
        piece = pieces[-1]
        escaped = character == escape
        if escaped:
            character = next(characters, "")
            if not character:
                raise PatternError("The pattern of LIKE ends with its escape character.")
        if character == "%" and not escaped:
            pieces.append(_Piece(0, []))
            joined = False
            continue
        if character == "_" and not escaped:
            joined = False
        else:
            if joined:
                offset, run = piece.runs[-1]
                piece.runs[-1] = (offset, run + character)
            else:
                piece.runs.append((piece.length, character))
            joined = True
        piece.length += 1
    return pieces

"""The errors of expressions: errors in their text, and errors when they are evaluated for a message."""

from __future__ import annotations

import logging
import re

log = logging.getLogger(__name__)

_LINE_END = re.compile(r"\r\n|\r|\n")
_MARGIN = 50
"""The number of characters of a long line that are shown on either side of the error."""


class SqlError(ValueError):
    """The text is not an expression of the language, or exceeds a limit.

    `str()` is several lines: the sentence, the line of the expression, and a caret under the error.
    """

    position: int
    """Offset in the text, from 0."""
    reason: str
    """The sentence alone, with line and column, both from 1."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        start, line = 0, 1
        for end in _LINE_END.finditer(text, 0, position):
            start, line = end.end(), line + 1
        column = position - start + 1
        self.position = position
        self.reason = f"{problem} (line {line}, column {column})"
        excerpt, caret = _excerpt(_LINE_END.split(text[start:], maxsplit=1)[0], position - start)
        super().__init__(f"{self.reason}\n  {excerpt}\n  {caret}")


def shown(text: str, longest: int = 40) -> str:
    """Return a part of an expression for an error message: printable, and at most `longest` characters."""
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    return "".join(character if character.isprintable() else "?" for character in text)


def _excerpt(line: str, column: int) -> tuple[str, str]:
    """Return the part of the line around the column, and a second line with the caret."""
    start, end = max(0, column - _MARGIN), column + _MARGIN
    before, after = ("..." if start else ""), ("..." if end < len(line) else "")
    part = line[start:end].replace("\t", " ")
    return before + shown(part, len(part)) + after, " " * (len(before) + column - start) + "^"


class EvaluationError(Exception):
    """A valid expression cannot be evaluated for a message. `str()` is one sentence."""


def sentence_of(failure: Exception) -> str:
    """Return the reason why a rule failed for a message, as a sentence. Log faults of the broker with a traceback."""
    if isinstance(failure, EvaluationError):
        return str(failure)
    log.error("a rule failed on a message", exc_info=failure)
    return f"The broker could not evaluate it ({type(failure).__name__})."

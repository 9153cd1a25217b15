"""The findings of a check of a data folder, and the type of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..keys import MAX_NUMBER, NUMBER_BITS

INDEX: Final = "peeklock.db"

Progress = Callable[[str, int, int], None]
"""Called with the name of the current work, the steps made since the last call, and the total number of steps."""


def no_progress(doing: str, steps: int, total: int) -> None:
    """Ignore the progress."""


class Kind(StrEnum):
    """The kinds of damage."""

    MESSAGE = "message"
    """The bytes of a message are damaged or missing."""
    RECORD = "record"
    """A record of the log cannot be read."""
    SEGMENT = "segment"
    """A segment of the log is missing, cut short, or not the one that was applied to the index."""
    PAGE = "page"
    """A page of the index is damaged, or pages cannot be checked."""
    INDEX = "index"
    """The index contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage that a check found."""

    kind: Kind
    file: Path
    text: str
    offset: int | None = None
    commit: int | None = None
    entity: int | None = None
    path: str | None = None
    """The path of the entity."""
    sequence_number: int | None = None

    @property
    def key(self) -> int | None:
        """The key of the damaged message; None if the finding is not about a message with a known number."""
        if self.entity is None or self.sequence_number is None:
            return None
        return self.entity << NUMBER_BITS | self.sequence_number


def damaged_message(
    key: int, file: Path, text: str, *, path: str | None, offset: int | None = None, commit: int | None = None
) -> Finding:
    """Return the finding for a damaged message."""
    return Finding(
        kind=Kind.MESSAGE,
        file=file,
        offset=offset,
        commit=commit,
        entity=key >> NUMBER_BITS,
        path=path,
        sequence_number=key & MAX_NUMBER,
        text=text,
    )

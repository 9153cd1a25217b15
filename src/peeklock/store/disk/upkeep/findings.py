"""What a check of a data folder finds, and how it reports progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..keys import MAX_NUMBER, NUMBER_BITS

INDEX: Final = "peeklock.db"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the steps made since the last call, and the number of steps in all."""


def no_progress(doing: str, steps: int, total: int) -> None:
    """Show nothing."""


class Kind(StrEnum):
    MESSAGE = "message"
    """The bytes of a message are damaged or missing."""
    RECORD = "record"
    """A record of the log cannot be read."""
    SEGMENT = "segment"
    """A segment of the log is missing, cut short or not what the index was made from."""
    PAGE = "page"
    """A page of the index is damaged, or pages cannot be checked."""
    INDEX = "index"
    """The index contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: Kind
    file: Path
    text: str
    offset: int | None = None
    commit: int | None = None
    entity: int | None = None
    path: str | None = None
    """Of the entity."""
    sequence_number: int | None = None

    @property
    def key(self) -> int | None:
        """Of the message that is damaged."""
        if self.entity is None or self.sequence_number is None:
            return None
        return self.entity << NUMBER_BITS | self.sequence_number


def damaged_message(
    key: int, file: Path, text: str, *, path: str | None, offset: int | None = None, commit: int | None = None
) -> Finding:
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

"""Rows that cannot be written: they fail the write, are dropped with a line in the log, or are kept as JSON lines.

Knows the three ways of the option `onBadMessage`. Which rows are bad, and why, is found by the writers.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

log = logging.getLogger(__name__)

FOLDER: Final = "path:"


class BadRow(ValueError):
    """A row cannot be written; the text has its number and the reason."""


class BadRows:
    """Handles the bad rows of one task; `count` counts them. A context manager that stores the kept rows."""

    def __init__(self, way: str, write: str, partition: int) -> None:
        """`way` is `fail`, `drop` or `path:<folder>`; `write` names the write among others in the folder."""
        self.count = 0
        self._fails = way == "fail"
        self._partition = partition
        self._file: IO[str] | None = None
        folder = Path(way.removeprefix(FOLDER)) if way.startswith(FOLDER) else None
        name = f"{write.replace('/', '-')}.jsonl"
        self._kept = None if folder is None else folder / name
        # Each attempt writes a separate file until it ends, so that a second attempt does not duplicate rows.
        self._attempt = None if folder is None else folder / f".{name}.{uuid4().hex}"

    def __enter__(self) -> BadRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None or self._attempt is None or self._kept is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                self._attempt.replace(self._kept)
        finally:
            with suppress(FileNotFoundError):
                self._attempt.unlink()

    def add(self, row: int, reason: str, values: Mapping[str, Any]) -> None:
        """Raise BadRow, unless bad rows are dropped or kept. `row` counts from 1 in the partition."""
        where = f"row {row} of partition {self._partition}"
        if self._fails:
            raise BadRow(f"{where} cannot be written: {reason}")
        self.count += 1
        if self._attempt is None:
            log.warning("%s is dropped: %s", where, reason)
            return
        if self._file is None:
            self._attempt.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._attempt.open("w", encoding="utf-8")
            log.warning("%s cannot be written and is stored in %s, as are later ones: %s", where, self._kept, reason)
        line = {"reason": reason, "partition": self._partition, "row": row, **values}
        self._file.write(json.dumps(line, ensure_ascii=False, default=_text) + "\n")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)

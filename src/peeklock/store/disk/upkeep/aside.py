"""The file of the messages and commits that a repair removes from a data folder: one JSON object on each line."""

from __future__ import annotations

import json
import os
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..folder import sync_file, sync_folder
from ..keys import LENGTH_BITS, LENGTH_MASK
from ..log.segments import Segments
from .findings import Finding
from .salvage import Lost, Readable, payloads_left

_COLUMNS = ("enqueued_at", "expires_at", "due_at", "delivery_count", "state", "session_id", "annex")
_MESSAGE = f"""
    SELECT {", ".join(_COLUMNS)}, message.segment, message.place, body.segment, body.place
    FROM message LEFT JOIN body ON body.key = message.body WHERE message.key = ?
"""


def set_aside(
    folder: Path,
    connection: sqlite3.Connection,
    segments: Segments,
    messages: list[Finding],
    lost: list[Lost],
    unfit: list[tuple[Readable, str]],
) -> Path | None:
    """Write everything that can be read of the messages and commits to a new file, and sync it.

    Return the file, or None if there is nothing to write. Raise OSError or sqlite3.Error.
    """
    if not (messages or lost or unfit):
        return None
    descriptor, file = _create(folder)
    with open(descriptor, "w", encoding="utf-8") as opened:
        for row in _rows(connection, segments, messages, lost, unfit):
            print(json.dumps(row), file=opened)
        opened.flush()
        sync_file(opened.fileno())
    sync_folder(folder)
    return file


def _create(folder: Path) -> tuple[int, Path]:
    name = f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    attempt = 0
    while True:
        file = folder / (f"{name}-{attempt}.jsonl" if attempt else f"{name}.jsonl")
        try:
            return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), file
        except FileExistsError:
            attempt += 1


def _rows(
    connection: sqlite3.Connection,
    segments: Segments,
    messages: list[Finding],
    lost: list[Lost],
    unfit: list[tuple[Readable, str]],
) -> Iterator[dict[str, Any]]:
    for found in messages:
        yield _message(connection, segments, found)
    for commits in lost:
        yield {
            "first_commit": commits.first_commit,
            "last_commit": commits.last_commit,
            "reason": commits.describe(),
            "payloads": [_encoded(payload) for payload in payloads_left(segments, commits)],
            "bytes": [
                {"file": file.name, "offset": begin, "base64": _encoded(_raw(file, begin, end - begin))}
                for file, begin, end in commits.regions
            ],
        }
    for record, reason in unfit:
        yield {"commit": record.commit, "reason": reason, "record_end": _encoded(record.end)}


def _message(connection: sqlite3.Connection, segments: Segments, found: Finding) -> dict[str, Any]:
    *values, segment, place, body_segment, body_place = connection.execute(_MESSAGE, (found.key,)).fetchone()
    columns = dict(zip(_COLUMNS, values, strict=True))
    annex = columns.pop("annex")
    body = None if body_segment is None else _payload(segments, body_segment, body_place)
    return {
        "entity": found.path,
        "sequence_number": found.sequence_number,
        "reason": found.text,
        **columns,
        "annex": None if annex is None else _encoded(annex),
        "payload": _encoded(_payload(segments, segment, place)),
        "body": None if body is None else _encoded(body),
    }


def _payload(segments: Segments, number: int, place: int) -> bytes:
    """Read the bytes of a payload, without verifying its checksum."""
    return _raw(segments.path(number), place >> LENGTH_BITS, place & LENGTH_MASK)


def _raw(file: Path, offset: int, length: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(length)
    except OSError:
        return b""


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()

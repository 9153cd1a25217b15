"""Encoding and decoding of an entry as the end of its commit's record in the log.

The lengths of all sections come first, then the sections. The integer sections that most commits have are packed, eight
bytes for each integer, and the places of new payloads follow `bytes`. All other sections are JSON, like the parameters
of a statement.
"""

from __future__ import annotations

import json
import re
import struct
from struct import Struct, pack, unpack, unpack_from
from typing import Any, Final

from ...base import ACTIVE, StoreError
from .entry import SECTIONS, AppendRun, Entry, Row, encode, extents_of

_LENGTHS: Final = Struct(f"<{len(SECTIONS)}Q")
_MAX_BYTES: Final = 500_000_000  # SQLite's limit for a value is 1,000,000,000
_LONG_NUMBERS: Final = re.compile("[0-9]{19,}")
_NUMBERS: Final = ("first_key", "last_key")

_WIDTHS: Final = {"appends": 4, "runs": 2, "run_updates": 4, "run_removals": 3, "deltas": 8, "extents": 4}
"""The number of integers in each row of the packed sections. For appends: first key, enqueued_at, segment, count."""
_PACKED: Final = b"\0"
"""The first byte of a packed section; JSON never begins with it."""
_DEFAULTS: Final = (None, None, None, None)
"""The expires_at, due_at, session id and annex of nearly all messages."""
_UNKNOWN_FORMAT: Final = "The format of a record of the log is not known to this version of Peeklock."


def to_bytes(entry: Entry) -> bytes:
    """Encode an entry. Raise StoreError if the index could not store it: every record of the log must be applicable."""
    row = _Record()
    runs = entry.appends
    if _have_default_columns(runs):
        entry.fill(row, [])
        row.put_numbers("appends", [(key, columns[2], segment, len(places)) for key, columns, segment, places in runs])
    else:
        entry.fill(row, [(*run[:-1], len(run[-1])) for run in runs])
    if entry.copies or entry.rewrites or entry.moves:  # if there are only appends, the decoder computes the extents
        row.put_numbers("extents", entry.extents(runs))
    sections = row.parameters()
    places = [place for run in runs for place in run[-1]]
    sections["bytes"] += pack(f"<{len(places)}Q", *places)
    parts = []
    for section in SECTIONS:
        value = sections[section]
        if value is None:
            parts.append(b"")
        elif isinstance(value, bytes):
            parts.append(value)
        else:
            text = str(value)
            if section != "entities":  # entities were checked by Batch, and their texts may contain long digits
                _check_numbers(text)
            parts.append(text.encode())
    joined = b"".join([_LENGTHS.pack(*map(len, parts)), *parts])
    if len(joined) > _MAX_BYTES:
        raise StoreError(f"The commit has {len(joined)} bytes besides its payloads; at most {_MAX_BYTES} are allowed.")
    return joined


def parameters_of(end: bytes) -> dict[str, Any]:
    """Decode the result of `to_bytes` to what `Entry.parameters` returns. Raise StoreError."""
    parameters: dict[str, Any] = {}
    begin = _LENGTHS.size
    if len(end) < begin:
        raise StoreError(_UNKNOWN_FORMAT)
    for section, length in zip(SECTIONS, _LENGTHS.unpack_from(end), strict=True):
        value = end[begin : begin + length]
        begin += length
        if section == "bytes":
            parameters[section] = value
        elif not value:
            parameters[section] = None
        elif section in _NUMBERS:
            parameters[section] = int(value)
        elif value.startswith(_PACKED):
            parameters[section] = _unpack(section, value)
        else:
            parameters[section] = value.decode()
    if begin != len(end):
        raise StoreError(_UNKNOWN_FORMAT)
    if parameters["appends"] is not None:
        _put_places(parameters)
    for section in _WIDTHS:
        if isinstance(parameters[section], list):
            parameters[section] = encode(parameters[section])
    return parameters


class _Record(Row):
    """A row whose sections of integers are packed."""

    def put_numbers(self, section: str, rows: list[Any]) -> None:
        if rows:
            numbers = [number for row in rows for number in row]
            try:
                self.sections[section] = _PACKED + pack(f"<{len(numbers)}q", *numbers)
            except struct.error as error:
                raise StoreError(f"A number in the section {section} has more than 64 bits.") from error


def _have_default_columns(runs: list[AppendRun]) -> bool:
    """Return whether all runs have default columns except for enqueued_at."""
    return all(columns[0] == ACTIVE and not columns[1] and columns[3:] == _DEFAULTS for _, columns, _, _ in runs)


def _unpack(section: str, value: bytes) -> list[Any]:
    width = _WIDTHS.get(section)
    if width is None or len(value) % (8 * width) != len(_PACKED):
        raise StoreError(_UNKNOWN_FORMAT)
    numbers = unpack(f"<{len(value) // 8}q", value[len(_PACKED) :])
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    if section != "appends":
        return rows
    nothing = (None,) * 6  # expires_at and due_at; position and length of session id and annex
    return [(key, ACTIVE, 0, at, *nothing, segment, count) for key, at, segment, count in rows]


def _put_places(parameters: dict[str, Any]) -> None:
    """Move the places of new payloads from the end of `bytes` into `appends`."""
    runs = parameters["appends"]
    if not isinstance(runs, list):
        runs = json.loads(runs)
    places = parameters["bytes"]
    at = len(places) - 8 * sum(run[-1] for run in runs)
    parameters["bytes"] = places[:at]
    for number, run in enumerate(runs):
        count = run[-1]
        runs[number] = (*run[:-1], unpack_from(f"<{count}Q", places, at))
        at += 8 * count
    parameters["appends"] = encode(runs)
    if parameters["extents"] is None:
        parameters["extents"] = extents_of((run[-2], run[0], run[0] + len(run[-1]) - 1) for run in runs)


def _check_numbers(text: str) -> None:
    for digits in _LONG_NUMBERS.findall(text):
        if int(digits) >= 1 << 63:
            raise StoreError(f"The number {digits} has more than 64 bits.")

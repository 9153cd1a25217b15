"""An entry as bytes, as the record of its commit ends with it in the log.

Sections follow each other, their lengths before them. What every message has a share in is numbers of eight bytes, and
where the payloads of new messages are is behind `bytes`; all else is JSON, as the parameters of a statement are.
"""

from __future__ import annotations

import json
import re
import struct
from struct import Struct, pack, unpack, unpack_from
from typing import Any, Final

from ...base import ACTIVE, StoreError
from .entry import SECTIONS, Entry, Row, Run, encode, extents_of

_LENGTHS: Final = Struct(f"<{len(SECTIONS)}Q")
_LONGEST: Final = 500_000_000  # of the 1,000,000,000 that SQLite takes
_LONG_NUMBERS: Final = re.compile("[0-9]{19,}")
_NUMBERS: Final = ("first_key", "last_key")

_WIDTHS: Final = {"appends": 4, "runs": 2, "run_updates": 4, "run_removals": 3, "deltas": 8, "extents": 4}
"""How many numbers each row of these has. Of appends: first key, enqueued at, segment, how many."""
_PACKED: Final = b"\0"
"""Begins a section of numbers; JSON never does."""
_ALIKE: Final = (None, None, None, None)
"""What nearly all messages have for expiry, due time, session and annex."""
_OTHER_FORM: Final = "A record of the log has another form than this Peeklock knows."


def to_bytes(entry: Entry) -> bytes:
    """StoreError for what the index could not hold: what is in the log must find its place there."""
    row = _Record()
    runs = entry.appends
    if _are_alike(runs):
        entry.fill(row, [])
        row.put_numbers("appends", [(key, kind[2], segment, len(places)) for key, kind, segment, places in runs])
    else:
        entry.fill(row, [(*run[:-1], len(run[-1])) for run in runs])
    if entry.copies or entry.rewrites or entry.moves:  # those of appends alone can be told from them
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
            if section != "entities":  # which have been checked, and have texts
                _check_numbers(text)
            parts.append(text.encode())
    joined = b"".join([_LENGTHS.pack(*map(len, parts)), *parts])
    if len(joined) > _LONGEST:
        raise StoreError(f"A commit of {len(joined)} bytes beside its payloads is too long; {_LONGEST} are allowed.")
    return joined


def parameters_of(end: bytes) -> dict[str, Any]:
    """What `to_bytes` made, as `Entry.parameters` would have told it. StoreError."""
    parameters: dict[str, Any] = {}
    begin = _LENGTHS.size
    if len(end) < begin:
        raise StoreError(_OTHER_FORM)
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
        raise StoreError(_OTHER_FORM)
    if parameters["appends"] is not None:
        _put_places(parameters)
    for section in _WIDTHS:
        if isinstance(parameters[section], list):
            parameters[section] = encode(parameters[section])
    return parameters


class _Record(Row):
    """Rows of numbers are packed."""

    def put_numbers(self, section: str, rows: list[Any]) -> None:
        if rows:
            numbers = [number for row in rows for number in row]
            try:
                self.sections[section] = _PACKED + pack(f"<{len(numbers)}q", *numbers)
            except struct.error as error:
                raise StoreError(f"A number of the {section} has more than 64 bits.") from error


def _are_alike(runs: list[Run]) -> bool:
    """But for their numbers."""
    return all(kind[0] == ACTIVE and not kind[1] and kind[3:] == _ALIKE for _, kind, _, _ in runs)


def _unpack(section: str, value: bytes) -> list[Any]:
    width = _WIDTHS.get(section)
    if width is None or len(value) % (8 * width) != len(_PACKED):
        raise StoreError(_OTHER_FORM)
    numbers = unpack(f"<{len(value) // 8}q", value[len(_PACKED) :])
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    if section != "appends":
        return rows
    nothing = (None,) * 6  # session and annex have two each: where they begin, how long they are
    return [(key, ACTIVE, 0, at, *nothing, segment, count) for key, at, segment, count in rows]


def _put_places(parameters: dict[str, Any]) -> None:
    """Take the places from behind `bytes` to where they belong."""
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

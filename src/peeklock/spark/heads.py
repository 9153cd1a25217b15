"""Reads the head of a message: the header and annotations that the broker writes in front of it.

Most heads have one of four forms, whose size is fixed from the first annotation's value on: the message was peeked or
received, and it may be a subscription's copy, which also has the message's sequence number in the topic. `columns` cuts
heads of these forms out of messages and decodes them together; this module has the constants of the forms. It is one of
the compiled modules.
"""

from __future__ import annotations

from typing import Any, Final

from peeklock.amqp.codec import encode_value
from peeklock.amqp.decoders import FAILURES, READERS, new_budget
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.sections import HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, compound_body, value_end
from peeklock.amqp.service_bus import END_OF_TIME, START_OF_TIME
from peeklock.amqp.types import Symbol
from peeklock.spark.texts import plain_text

UNREADABLE: Final = (DecodeError, *FAILURES)
"""The errors of decoding an invalid message."""

_TO_NUMBER: Final = encode_value(Symbol("x-opt-sequence-number")) + b"\x81"
_TO_ENQUEUED: Final = encode_value(Symbol("x-opt-enqueued-time")) + b"\x83"
_TO_FIRST: Final = encode_value(Symbol("x-opt-enqueue-sequence-number")) + b"\x81"
_TO_STATE: Final = encode_value(Symbol("x-opt-message-state")) + b"\x54"

MARKS: Final = bytes(8) + _TO_ENQUEUED + bytes(8) + _TO_STATE + bytes(1)
"""The annotations of a peeked message from the first value on, with zeros for the values."""
NUMBERS_AT: Final = (0, 8 + len(_TO_ENQUEUED))
"""The offsets of the two numbers of eight bytes in MARKS. The state is its last byte."""
ACTIVE: Final = _TO_STATE + bytes(1)
"""The end of MARKS, which the annotations of a received message do not have."""
FIRST: Final = _TO_FIRST
"""The bytes after MARKS in the annotations of a copy, before a number of eight bytes."""


def _opening(size: int, entries: int) -> bytes:
    """The section of the annotations up to the first value; `size` is that of its entries."""
    return b"\x00\x53\x72\xc1" + bytes((1 + size, 2 * entries)) + _TO_NUMBER


_PEEKED_SIZE: Final = len(_TO_NUMBER) + len(MARKS)
_RECEIVED_SIZE: Final = _PEEKED_SIZE - len(ACTIVE)
_FIRST_SIZE: Final = len(FIRST) + 8
_FORMS: Final = {
    _opening(_PEEKED_SIZE, 3): (True, False),
    _opening(_PEEKED_SIZE + _FIRST_SIZE, 4): (True, True),
    _opening(_RECEIVED_SIZE, 2): (False, False),
    _opening(_RECEIVED_SIZE + _FIRST_SIZE, 3): (False, True),
}
"""The forms by their first bytes: whether the message was peeked, and whether it is a copy."""
_START: Final = len(_opening(0, 0))
_LONGEST_OPENING: Final = 256

_MOST_DELIVERIES: Final = (1 << 31) - 1
_SLOTS: Final = {
    b"x-opt-sequence-number": 0,
    b"x-opt-enqueued-time": 1,
    b"x-opt-enqueue-sequence-number": 2,
    b"x-opt-message-state": 3,
    b"x-opt-scheduled-enqueue-time": 4,
    b"x-opt-partition-key": 5,
    b"x-opt-deadletter-source": 6,
}
_TEXTS_FROM: Final = 5

# Most headers are one of a few, and each is decoded once. Bounded, as headers come from senders.
_headers: Final[dict[bytes, tuple[int, int | None]]] = {}


class Head:
    """The head of the message in `data` from `at` on; `behind` is where the first other section starts."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.behind = at
        self.delivery_count = 0
        self.ttl: int | None = None
        self.number: int | None = None
        self.enqueued: int | None = None
        self.first_number: int | None = None
        self.state = 0
        self.scheduled: int | None = None
        self.partition_key: bytes | None = None
        self.source: bytes | None = None
        self.opening = b""
        """All bytes before the first value, if the annotations have one of the usual forms."""
        self.is_peeked = False
        self.is_copy = False
        self._read(data, at, end)

    def _read(self, data: bytes, start: int, size: int) -> None:
        at = start
        is_first = True
        while at < size and data[at] == 0 and data[at + 1] == 0x53:
            code = data[at + 2]
            if code >= PROPERTIES:
                break
            kind = data[at + 3]
            if kind == 0xC0 or kind == 0xC1:
                end = at + 5 + data[at + 4]
            else:
                end = value_end(data, at + 3)
            if end > size:
                raise DecodeError("the message ends in the middle of a section")
            if code == MESSAGE_ANNOTATIONS:
                value_at = at + _START
                self.opening = b""
                if is_first and value_at - start <= _LONGEST_OPENING:
                    form = _FORMS.get(data[at:value_at])
                    if form is not None:
                        self.is_peeked, self.is_copy = form
                        self.opening = data[start:value_at]
                is_first = False
                self._read_annotations(data, at, end)
            else:
                self.opening = b""
                if code == HEADER:
                    encoded = data[at + 3 : end]
                    known = _headers.get(encoded)
                    self.delivery_count, self.ttl = known if known is not None else _read_header(encoded)
            at = end
        self.behind = at

    def _read_annotations(self, data: bytes, at: int, end: int) -> None:
        if data[at + 3] == 0xC1:
            i, count = at + 6, data[at + 5]
        else:
            i, count = compound_body(data, at + 3)
        budget = new_budget()
        value: Any
        for _ in range(count >> 1):
            if data[i] == 0xA3:
                behind = i + 2 + data[i + 1]
                slot = _SLOTS.get(data[i + 2 : behind], -1)
            else:
                key, behind = READERS[data[i]](data, i + 1, 1, budget)
                slot = _SLOTS.get(key.encode(), -1) if isinstance(key, str) else -1
            constructor = data[behind]
            if slot < _TEXTS_FROM and (constructor == 0x81 or constructor == 0x83):
                i = behind + 9
                value = int.from_bytes(data[behind + 1 : i], "big", signed=True) if slot >= 0 else None
            else:
                value, i = READERS[constructor](data, behind + 1, 1, budget)
            if slot >= 0:
                self._set(slot, value)
        if i != end:
            raise DecodeError("the size of the annotations does not match their content")

    def _set(self, slot: int, value: Any) -> None:
        """Store a value: a number for a column of numbers, text for a column of text."""
        if slot == 5:
            self.partition_key = encoded_text(value)
        elif slot == 6:
            self.source = encoded_text(value)
        else:
            number = whole_number(value)
            if slot == 0:
                self.number = number
            elif slot == 1:
                self.enqueued = number
            elif slot == 2:
                self.first_number = number
            elif slot == 3:
                self.state = 0 if number is None else number
            else:
                self.scheduled = number


def salvaged(payload: bytes) -> Head:
    """Return the head of an unreadable message; an empty head if that is unreadable too."""
    at = 0
    try:
        while payload[at : at + 2] == b"\x00\x53" and payload[at + 2] < PROPERTIES:
            at = value_end(payload, at + 3)
        return Head(payload[:at], 0, at)
    except UNREADABLE:
        return Head(b"", 0, 0)


def encoded_text(value: Any) -> bytes | None:
    """Convert an id of any type to text, in UTF-8."""
    text = plain_text(value)
    return None if text is None else text.encode()


def whole_number(value: Any) -> int | None:
    """Return a number of 64 bits; None for any other value that a sender may have written."""
    if not isinstance(value, int) or isinstance(value, bool) or not -1 << 63 <= value < 1 << 63:
        return None
    return int(value)


def micros(ms: int) -> int | None:
    """Convert milliseconds to microseconds; None for a time outside the calendar, which senders may write."""
    return ms * 1000 if START_OF_TIME <= ms <= END_OF_TIME else None


def _read_header(encoded: bytes) -> tuple[int, int | None]:
    fields, _ = READERS[encoded[0]](encoded, 1, 1, new_budget())
    if not isinstance(fields, list):
        raise DecodeError("the header section is not a list")
    fields += [None] * (5 - len(fields))
    ttl, count = fields[2], fields[4]
    count = max(0, min(int(count), _MOST_DELIVERIES)) if isinstance(count, int) else 0
    found = (count, int(ttl) if isinstance(ttl, int) else None)
    if len(_headers) < 1024 and len(encoded) < 64:
        _headers[encoded] = found
    return found

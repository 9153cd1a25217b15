"""Decodes messages into columns: one list or buffer for each column that is wanted, and nothing else.

Text stays UTF-8 as it came; the caller checks it, a column at a time. `heads` knows the head of a message,
`property_maps` the application properties, `rows` Arrow and Spark. Every row that is read passes through here, so most
of the work is cutting bytes. Compiled in a compiled Peeklock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from peeklock.amqp.decoders import READERS, new_budget
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message
from peeklock.amqp.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    compound_body,
    value_end,
)
from peeklock.spark.heads import (
    ACTIVE,
    FIRST,
    MARKS,
    NUMBERS_AT,
    UNREADABLE,
    Head,
    encoded_text,
    micros,
    salvaged,
    whole_number,
)
from peeklock.spark.property_maps import PropertyMaps
from peeklock.spark.texts import plain_bytes, plain_json

# The columns by their place in the message: fields of the properties, numbers of the head.
_FIELDS: Final = (
    "message_id",
    "",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "",
    "",
    "",
    "session_id",
    "",
    "reply_to_session_id",
)
_EXPIRY: Final = 8
NUMBERS: Final = ("sequence_number", "enqueued_time")
"""The columns that `Columns.numbers` gives, in its order."""
_MARKED: Final = (
    *NUMBERS,
    "enqueued_sequence_number",
    "state",
    "scheduled_enqueue_time",
    "expires_at",
    "partition_key",
    "dead_letter_source",
)
"""The columns that need the annotations, if only to verify that a head has the form that was assumed."""

_NO_OPENING: Final = b"\x00"
_MARKS_SIZE: Final = len(MARKS)
_FIRST_SIZE: Final = len(FIRST) + 8


class UnreadableMessage(ValueError):
    """A message cannot be decoded; the text names it by its sequence number, if that can be read."""


class Unfit(Exception):
    """A head does not have the form that was assumed: decode the page again with `checks`."""


class Columns:
    """The wanted columns of `count` messages; a column that is not wanted is None.

    With `checks` all text is checked and no form of a head is assumed: slower, and the first invalid message is found.
    With `keeps_unreadable` the bytes of an invalid message become its body; without, it is an UnreadableMessage.
    """

    def __init__(
        self, wanted: Collection[str], count: int, typed_json: bool, checks: bool, keeps_unreadable: bool, entity: str
    ) -> None:
        self.count = count
        self.texts: dict[str, list[bytes | None]] = {}
        """By the name of the column: everything that is text."""
        self._wanted = wanted
        self.checks = checks
        self._keeps_unreadable = keeps_unreadable
        self._entity = entity

        self.body = bytearray()
        """The bodies of all rows, concatenated: allocating each would cost as much as the rest of the decoding."""
        self.body_sizes: list[int] | None = [0] * count if "body" in wanted else None
        self.bodiless: set[int] = set()
        """The rows whose body is null."""
        self._fields: list[list[bytes | None] | None] = [self._text(name) for name in _FIELDS]
        self._partition_keys = self._text("partition_key")
        self._sources = self._text("dead_letter_source")
        self.maps = PropertyMaps(
            count,
            "application_properties" in wanted,
            "typed_properties" in wanted,
            self._text("dead_letter_reason"),
            self._text("dead_letter_error_description"),
            typed_json,
            checks,
        )
        self.first_numbers: list[int | None] | None = self._integers("enqueued_sequence_number")
        self.scheduled: list[int | None] | None = self._integers("scheduled_enqueue_time")
        self.expiries: list[int | None] | None = self._integers("expires_at")
        self.delivery_counts: list[int] | None = [0] * count if "delivery_count" in wanted else None
        self.unnumbered: list[set[int]] = [set(), set()]
        """For each of NUMBERS, the rows without it."""
        self._marks: list[bytes] | None = None
        if any(name in wanted for name in _MARKED):
            self._marks = [MARKS] * count
        self._reads_fields = self.expiries is not None or any(each is not None for each in self._fields)
        self._reads_map = self.maps.is_wanted

        self.heads_read = 0
        """Heads that were read whole, because they did not begin like the one before."""
        # The last head that had one of the usual forms.
        self._opening = _NO_OPENING
        self._opening_size = 0
        self._opening_count = 0
        self._opening_ttl: int | None = None
        self._marks_size = 0
        self._marks_tail = b""
        self._first_size = 0
        """The size of the annotation after the marks that has a copy's first sequence number; 0 without it."""
        self._ttl: int | None = None
        """The time to live of the message that is being read."""
        self._enqueued: int | None = None

    def _text(self, name: str) -> list[bytes | None] | None:
        if name not in self._wanted:
            return None
        self.texts[name] = [None] * self.count
        return self.texts[name]

    def _integers(self, name: str) -> list[int | None] | None:
        return [None] * self.count if name in self._wanted else None

    # --- messages in ---

    def read_page(self, page: bytes, starts: list[int]) -> None:
        """Decode all messages of a packed page; `starts_of` finds where they start."""
        for row, end in enumerate(_ends(page, starts)):
            self._take(page, starts[row], end, row)

    def read_all(self, payloads: Sequence[bytes]) -> None:
        for row, payload in enumerate(payloads):
            self._take(payload, 0, len(payload), row)

    def _take(self, data: bytes, start: int, end: int, row: int) -> None:
        try:
            self._read(data, start, end, row)
        except UNREADABLE as error:
            payload = data[start:end]
            if not self._keeps_unreadable:
                number = salvaged(payload).number
                raise UnreadableMessage(f"message {number} of '{self._entity}' cannot be read: {error}") from error
            self._keep(payload, row)

    def _keep(self, payload: bytes, row: int) -> None:
        """Make the bytes of an unreadable message its body, and read the head that the service wrote before them."""
        self._clear(row)
        self._set_head(salvaged(payload), row)
        self._set_body(payload, row)
        if self.expiries is not None and self._ttl is not None and self._enqueued is not None:
            self.expiries[row] = micros(self._enqueued + self._ttl)

    def _read_anew(self, payload: bytes, row: int) -> None:
        self._clear(row)
        # The bytes that were read as the whole head may be only a part of it.
        self._opening, self._opening_size, self._marks_size, self._first_size = _NO_OPENING, 0, 0, 0
        self._read(payload, 0, len(payload), row)

    def _clear(self, row: int) -> None:
        """Reset a row, which must be the newest one."""
        for texts in self.texts.values():
            texts[row] = None
        if self.first_numbers is not None:
            self.first_numbers[row] = None
        if self.scheduled is not None:
            self.scheduled[row] = None
        if self.expiries is not None:
            self.expiries[row] = None
        if self.delivery_counts is not None:
            self.delivery_counts[row] = 0
        if self._marks is not None:
            self._marks[row] = MARKS
        for rows in self.unnumbered:
            rows.discard(row)
        if self.body_sizes is not None and self.body_sizes[row]:
            del self.body[len(self.body) - self.body_sizes[row] :]
            self.body_sizes[row] = 0
        self.bodiless.discard(row)
        self.maps.clear(row)

    def _read(self, data: bytes, start: int, size: int, row: int) -> None:
        """One message. Written out at length: a call for each section and field would double its time."""
        at = start + self._opening_size
        behind = at + self._marks_size
        first_at = behind
        first_size = self._first_size
        if first_size:
            first_at += first_size - 8
            is_usual = data[start:at] == self._opening and data[behind:first_at] == FIRST
        else:
            is_usual = data[start:at] == self._opening
        if is_usual and behind + first_size <= size:
            marks = self._marks
            if marks is not None:
                tail = self._marks_tail
                marks[row] = data[at:behind] + tail if tail else data[at:behind]
            if self._opening_count and self.delivery_counts is not None:
                self.delivery_counts[row] = self._opening_count
            ttl = self._opening_ttl
            if ttl is not None:
                at += NUMBERS_AT[1]
                self._enqueued = int.from_bytes(data[at : at + 8], "big", signed=True)
            at = behind + first_size
            firsts = self.first_numbers
            if first_size and firsts is not None:
                firsts[row] = int.from_bytes(data[first_at:at], "big", signed=True)
        else:
            self.heads_read += 1
            head = Head(data, start, size)
            self._set_head(head, row)
            ttl = self._ttl
            at = head.behind
        expiry: int | None = None
        body: bytes | None = None
        parts: list[bytes] | None = None
        sequence: list[Any] | None = None
        value: Any
        while at < size:
            if data[at] or data[at + 1] != 0x53:
                self._read_anew(_usual(data[start:size]), row)
                return
            code = data[at + 2]
            kind = data[at + 3]
            if kind == 0xB0:
                end = at + 8 + (data[at + 4] << 24 | data[at + 5] << 16 | data[at + 6] << 8 | data[at + 7])
            elif kind == 0xC0 or kind == 0xC1 or kind == 0xA0:
                end = at + 5 + data[at + 4]
            else:
                end = value_end(data, at + 3)
            if end > size:
                raise DecodeError("the message ends in the middle of a section")
            if code == DATA:
                if self.body_sizes is not None:
                    if kind == 0xB0:
                        piece = data[at + 8 : end]
                    elif kind == 0xA0:
                        piece = data[at + 5 : end]
                    else:
                        raise DecodeError("a data section is not binary")
                    if body is None:
                        body = piece
                    elif parts is None:
                        parts = [body, piece]
                    else:
                        parts.append(piece)
            elif code == PROPERTIES:
                if self._reads_fields:
                    if kind == 0xC0:
                        i, count = at + 6, data[at + 5]
                    else:
                        i, count = compound_body(data, at + 3)
                    fields = self._fields
                    for index in range(count):
                        constructor = data[i]
                        if constructor == 0x40:
                            i += 1
                        elif constructor == 0xA1 or constructor == 0xA3:
                            behind = i + 2 + data[i + 1]
                            texts = fields[index]
                            if texts is not None:
                                texts[row] = data[i + 2 : behind]
                                if self.checks:
                                    data[i + 2 : behind].decode()
                            i = behind
                        else:
                            value, i = READERS[constructor](data, i + 1, 1, new_budget())
                            texts = fields[index]
                            if texts is not None:
                                texts[row] = encoded_text(value)
                            elif index == _EXPIRY:
                                expiry = whole_number(value)
                    if i != end:
                        raise DecodeError("the size of the properties does not match their content")
            elif code == APPLICATION_PROPERTIES:
                if self._reads_map:
                    self.maps.read(data, at + 3, end, row)
            elif code < PROPERTIES:
                self._read_anew(_in_order(data[start:size]), row)
                return
            elif self.body_sizes is None:
                pass
            elif code == AMQP_VALUE:
                value, _ = READERS[kind](data, at + 4, 1, new_budget())
                body = plain_bytes(value)
            elif code == AMQP_SEQUENCE:
                value, _ = READERS[kind](data, at + 4, 1, new_budget())
                sequence = value if sequence is None else sequence + value
            at = end
        if self.body_sizes is not None:
            if parts is not None:
                body = b"".join(parts)
            elif sequence is not None:
                body = plain_json(sequence).encode()
            self._set_body(body, row)
        expiries = self.expiries
        if expiries is not None:
            if expiry is not None:
                expiries[row] = micros(expiry)
            elif ttl is not None and self._enqueued is not None:
                expiries[row] = micros(self._enqueued + ttl)

    def _set_body(self, body: bytes | None, row: int) -> None:
        sizes = self.body_sizes
        if sizes is not None:
            if body is None:
                self.bodiless.add(row)
            else:
                sizes[row] = len(body)
                self.body += body

    def _set_head(self, head: Head, row: int) -> None:
        self._ttl, self._enqueued = head.ttl, head.enqueued
        if self.delivery_counts is not None:
            self.delivery_counts[row] = head.delivery_count
        if self._partition_keys is not None:
            self._partition_keys[row] = head.partition_key
        if self._sources is not None:
            self._sources[row] = head.source
        if self.first_numbers is not None:
            self.first_numbers[row] = head.first_number
        if self.scheduled is not None and head.scheduled is not None:
            self.scheduled[row] = micros(head.scheduled)
        if self._marks is not None:
            packed = bytearray(MARKS)
            for at, number, rows in zip(NUMBERS_AT, (head.number, head.enqueued), self.unnumbered, strict=True):
                if number is None:
                    rows.add(row)
                else:
                    packed[at : at + 8] = number.to_bytes(8, "big", signed=True)
            packed[-1] = head.state if 0 <= head.state < 255 else 255
            self._marks[row] = bytes(packed)
        if head.opening and not self.checks:
            self._opening = head.opening
            self._opening_size = len(head.opening)
            self._opening_count = head.delivery_count
            self._opening_ttl = head.ttl
            self._marks_tail = b"" if head.is_peeked else ACTIVE
            self._marks_size = _MARKS_SIZE - len(self._marks_tail)
            self._first_size = _FIRST_SIZE if head.is_copy else 0

    # --- columns out ---

    @property
    def has_numbers(self) -> bool:
        return self._marks is not None

    def numbers(self) -> tuple[list[bytearray], bytes]:
        """Return the two columns of NUMBERS, little-endian in eight bytes, and the states, in one byte.

        They are taken out of all heads at once, one byte of the number at a time: decoding each head takes five times
        as long. Unfit when a head has other bytes between its numbers than expected.
        """
        if self._marks is None:
            raise ValueError("no column of numbers is selected")
        joined = bytearray(b"".join(self._marks))
        zeros = bytes(self.count)
        found: list[bytearray] = []
        for at in NUMBERS_AT:
            column = bytearray(8 * self.count)
            for place in range(8):
                column[7 - place :: 8] = joined[at + place :: _MARKS_SIZE]
                joined[at + place :: _MARKS_SIZE] = zeros
            found.append(column)
        states = bytes(joined[_MARKS_SIZE - 1 :: _MARKS_SIZE])
        joined[_MARKS_SIZE - 1 :: _MARKS_SIZE] = zeros
        if joined != MARKS * self.count:
            raise Unfit
        return found, states


def starts_of(page: bytes, entity: str) -> list[int]:
    """Return where each message of a packed page starts; its length is in the four bytes before."""
    starts: list[int] = []
    at, size = 0, len(page)
    while at < size:
        if at + 4 > size:
            raise UnreadableMessage(f"a packed page of '{entity}' ends in the middle of a length")
        starts.append(at + 4)
        at += 4 + (page[at] << 24 | page[at + 1] << 16 | page[at + 2] << 8 | page[at + 3])
    if at != size:
        raise UnreadableMessage(f"a packed page of '{entity}' ends in the middle of a message")
    return starts


def messages_of(page: bytes, starts: list[int]) -> list[bytes]:
    """Split a packed page into its messages."""
    return [page[start:end] for start, end in zip(starts, _ends(page, starts), strict=True)]


def _ends(page: bytes, starts: list[int]) -> list[int]:
    return [start - 4 for start in starts[1:]] + [len(page)] if starts else []


def _usual(payload: bytes) -> bytes:
    """Encode a message again whose descriptors are legal but unusual (a long code, a symbol)."""
    rewritten = Message.decode(payload).encode()
    if rewritten == payload:
        raise DecodeError("a message section has no descriptor")
    return rewritten


def _in_order(payload: bytes) -> bytes:
    """Move the sections of the head to the front; some clients write annotations behind others."""
    front: list[bytes] = []
    rest: list[bytes] = []
    at = 0
    while at < len(payload):
        if payload[at : at + 2] != b"\x00\x53":
            rest.append(payload[at:])
            break
        end = value_end(payload, at + 3)
        (front if payload[at + 2] < PROPERTIES else rest).append(payload[at:end])
        at = end
    return b"".join(front + rest)

"""Decodes a message of a sender: checks it, and extracts the fields that the broker needs.

Header and annotations are removed. The parts that the broker cannot compute for a delivery (`heads`) become the annex.
"""

from __future__ import annotations

import random
from typing import Any, Final

from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import AmqpError, DecodeError
from peeklock.amqp.sections import (
    HEADER,
    NULL,
    PROPERTIES,
    Scanned,
    compound_map,
    cut,
    first_field_is_null,
    list_section,
    raw_entries,
    raw_fields,
    replace_section,
    scan,
)
from peeklock.amqp.service_bus import (
    DEAD_LETTER_SOURCE,
    DELIVERY_TIME,
    END_OF_TIME,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from peeklock.broker.annex import DEFAULT_PRIORITY, DURABLE, UINT_MAX, Annex
from peeklock.broker.bare_message import (
    ABSOLUTE_EXPIRY,
    CREATION_TIME,
    GROUP_ID,
    MESSAGE_ID,
    PROPERTIES_START,
    data_end,
    property_of,
    text_of,
)
from peeklock.broker.envelope import with_session_id
from peeklock.broker.errors import InvalidMessage, InvalidProperty, MessageSizeExceeded
from peeklock.limits.broker import MAX_DELIVERY_ANNOTATIONS, MAX_ID_LENGTH

_MAX_PRIORITY: Final = 0xFF

_OURS = {
    SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    ENQUEUED_SEQUENCE_NUMBER,
    LOCKED_UNTIL,
    DEAD_LETTER_SOURCE,
    MESSAGE_STATE,
    LOCK_TOKEN,
}
"""Annotations that only the broker sets. If a sender sets them, they are dropped."""

_HEADER_START: Final = bytes((0x00, 0x53, HEADER, 0xC0))
_SIZED: Final = 255
_USUAL: Final = (
    (1, (0x40, 0x41, 0x42, 0x43, 0x44, 0x45)),
    (2, (0x50, 0x51, 0x52, 0x53, 0x54, 0x55)),
    (3, (0x60, 0x61)),
    (5, (0x70, 0x71, 0x72)),
    (9, (0x80, 0x81, 0x82, 0x83)),
    (17, (0x98,)),
    (_SIZED, (0xA0, 0xA1, 0xA3)),
)
_WIDTHS: Final = bytes(sum(width for width, codes in _USUAL if code in codes) for code in range(256))
"""The width of a value by its constructor. `_SIZED`: the next byte has the width; 0: not one of the usual
constructors."""


class Incoming:
    """A message from a sender, without header and annotations."""

    __slots__ = ("annex", "bare", "scheduled_at", "session_id", "ttl_ms")

    def __init__(
        self, bare: bytes, annex: bytes | None, ttl_ms: int | None, session_id: str | None, scheduled_at: int | None
    ) -> None:
        self.bare = bare
        self.annex = annex
        self.ttl_ms = ttl_ms
        self.session_id = session_id
        self.scheduled_at = scheduled_at


def read_incoming(data: bytes, reads_session_id: bool, begin: int = 0, end: int = -1) -> Incoming:
    """Decode a message, which is the part of `data` from `begin` to `end`.

    Raise InvalidMessage or InvalidProperty if it is not valid.
    """
    if end < 0:
        end = len(data)
    if not reads_session_id:
        usual = _read_usual(data, begin, end)
        if usual is not None:
            return usual
    payload = data[begin:end]
    try:
        found = scan(payload)
        bare = found.bare
        properties = found.properties
        if properties is None or first_field_is_null(bare, properties):
            bare = _with_message_id(found)
        else:
            identity = property_of(found, MESSAGE_ID)
            if isinstance(identity, str):
                text_of(identity, "message id")
        priority = ttl_ms = scheduled_at = annex = session_id = None
        durable = False
        if found.header is not None:
            priority, ttl_ms, durable = _read_header(cut(payload, found.header))
            if ttl_ms == UINT_MAX:
                ttl_ms = _long_ttl(found)
        if found.annotations is not None or priority is not None or durable:
            encoded = b"" if found.annotations is None else cut(payload, found.annotations)
            annex, scheduled_at = _read_annex(priority, durable, encoded)
        if found.delivery_annotations is not None:
            annex = _with_delivery_annotations(annex, cut(payload, found.delivery_annotations))
        if reads_session_id and properties is not None:
            named = property_of(found, GROUP_ID)
            session_id = text_of(named, "session id")
            if session_id is not None and type(named) is bytes:
                bare = with_session_id(bare, session_id)
        return Incoming(bare, annex, ttl_ms, session_id, scheduled_at)
    except AmqpError as error:  # a DecodeError, or an EncodeError of a section that was changed
        raise InvalidMessage(f"The message could not be decoded: {error.description}.") from error


def _read_usual(data: bytes, begin: int, end: int) -> Incoming | None:
    """Decode a message of the usual form: an optional header, properties with an id, one data section. None for others.

    It takes a third of the time of the scan; a test compares their results. If the fields of a malformed message go
    beyond `end`, the data section does not end at `end`, and the function returns None.
    """
    try:
        at = begin
        annex = ttl_ms = None
        if data[at + 2] == HEADER and data[at : at + 4] == _HEADER_START:
            at += 5 + data[at + 4]
            priority, ttl_ms, durable = _read_header(data[begin + 3 : at])
            if priority is not None or ttl_ms == UINT_MAX:
                return None
            if durable:
                annex = DURABLE
        # A size, a count that is not 0, and a first field that is not null: there is an id.
        id_code = data[at + 6]
        if data[at : at + 4] != PROPERTIES_START or not data[at + 5] or id_code == 0x40:
            return None
        if id_code > 0xA0:
            id_end = at + 8 + data[at + 7]
            # The scan checks ids that may be too long.
            if id_end > at + 8 + MAX_ID_LENGTH or not data[at + 8 : id_end].isascii():
                return None
        behind = at + 5 + data[at + 4]
        field_at = at + 6
        for _ in range(data[at + 5]):
            width = _WIDTHS[data[field_at]]
            if not width:
                return None
            field_at += 2 + data[field_at + 1] if width == _SIZED else width
        if field_at > behind or data_end(data, behind) != end:
            return None
    except (IndexError, DecodeError):
        return None  # the scan raises the error
    return Incoming(data[at:end], annex, ttl_ms, None, None)


def _with_message_id(found: Scanned) -> bytes:
    """Add a message id to a message without one: some SDKs cannot settle a message that has no id."""
    encoded = b"\xa1\x20%032x" % random.getrandbits(128)
    if found.properties is None:
        return b"\x00\x53\x73\xc0\x23\x01" + encoded + found.bare
    fields = raw_fields(found.bare, found.properties) or [NULL]
    fields[MESSAGE_ID] = encoded
    return replace_section(found.bare, found.properties, list_section(PROPERTIES, fields))


# Most messages have one of a few headers, so decoded headers are cached. The size is bounded.
_headers: dict[bytes, tuple[int | None, int | None, bool]] = {}


def _read_header(encoded: bytes) -> tuple[int | None, int | None, bool]:
    """Return the priority, the time to live, and whether the message is durable."""
    known = _headers.get(encoded)
    if known is not None:
        return known
    values = [decode_value(field)[0] for field in raw_fields(encoded, slice(0, len(encoded)))[:3]]
    values += [None] * (3 - len(values))
    durable, priority, ttl_ms = values
    for name, value, most in (("priority", priority, _MAX_PRIORITY), ("ttl", ttl_ms, UINT_MAX)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most):
            raise DecodeError(f"header.{name} is not a number from 0 to {most}")
    # The default priority is not stored: a header without a priority means the same (3.2.1).
    kept = None if priority in (None, DEFAULT_PRIORITY) else int(priority)
    read = (kept, int(ttl_ms) if ttl_ms else None, durable is True)
    if len(_headers) < 1024 and len(encoded) <= 256:
        _headers[encoded] = read
    return read


def _long_ttl(found: Scanned) -> int | None:
    """Return a time to live beyond 32 bits: the difference of expiry and creation time in the properties."""
    expiry, creation = property_of(found, ABSOLUTE_EXPIRY), property_of(found, CREATION_TIME)
    if isinstance(expiry, int) and isinstance(creation, int) and expiry - creation >= UINT_MAX:
        return min(expiry - creation, END_OF_TIME)
    return UINT_MAX


# Messages sent together mostly have the same annotations, so results are cached. The size is bounded.
_annexes: dict[tuple[int | None, bool, bytes], tuple[bytes | None, int | None]] = {}


def _read_annex(priority: int | None, durable: bool, annotations: bytes) -> tuple[bytes | None, int | None]:
    """Return the annex for the header and annotations (an encoded map, or empty), and the scheduled enqueue time."""
    known = _annexes.get((priority, durable, annotations))
    if known is not None:
        return known
    kept, scheduled_at = _read_annotations(annotations) if annotations else ([], None)
    annex = Annex(priority, b"".join(kept), len(kept), durable=durable).encode_if_any()
    if len(_annexes) >= 1024:
        _annexes.clear()
    if len(annotations) <= 256:
        _annexes[priority, durable, annotations] = annex, scheduled_at
    return annex, scheduled_at


def _read_annotations(encoded: bytes) -> tuple[list[bytes], int | None]:
    kept: list[bytes] = []
    scheduled_at: int | None = None
    delivery_time: int | None = None
    for key, value in raw_entries(encoded, slice(0, len(encoded))):
        name = decode_value(key)[0]
        if not isinstance(name, str):
            _check_key(name)
        elif name in _OURS:
            continue
        if name in (SCHEDULED_ENQUEUE_TIME, DELIVERY_TIME):
            moment = decode_value(value)[0]
            if moment is None:
                continue
            if not isinstance(moment, int) or isinstance(moment, bool):
                raise InvalidProperty(f"The annotation {name} must be a timestamp.")
            if name == DELIVERY_TIME:
                delivery_time = min(int(moment), END_OF_TIME)
            else:
                scheduled_at = min(int(moment), END_OF_TIME)
        elif name in (PARTITION_KEY, VIA_PARTITION_KEY):
            given = decode_value(value)[0]
            text = text_of(given, "partition key")
            if type(given) is bytes:
                value = encode_value(text)  # receivers expect a string
        kept += (key, value)
    return kept, delivery_time if scheduled_at is None else scheduled_at


def _with_delivery_annotations(annex: bytes | None, encoded: bytes) -> bytes | None:
    """Return the annex with the delivery annotations of the sender (3.2.2)."""
    if len(encoded) > MAX_DELIVERY_ANNOTATIONS:
        raise MessageSizeExceeded(
            f"The delivery annotations have {len(encoded)} bytes; at most {MAX_DELIVERY_ANNOTATIONS} are allowed."
        )
    kept: list[bytes] = []
    for key, value in raw_entries(encoded, slice(0, len(encoded))):
        name = decode_value(key)[0]
        if not isinstance(name, str):
            _check_key(name)
        if name != LOCK_TOKEN:
            kept += (key, value)
    return Annex.decode(annex)._replace(delivery_annotations=compound_map(kept)).encode() if kept else annex


def _check_key(name: Any) -> None:
    """Raise DecodeError unless a key that is not a symbol is a ulong, which is reserved (3.2.10)."""
    if not isinstance(name, int) or isinstance(name, bool):
        raise DecodeError("the key of an annotation is not a symbol")

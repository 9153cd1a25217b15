"""What the broker reads from a message on its way in, and what it changes in one that it keeps.

The bare message (from its properties on) is kept as it came; only a missing message-id, the absolute expiry and
changed application properties make the broker write a section anew. Header and annotations are taken off; what of
them cannot be built again for a delivery, which is `heads`' business, is the message's `annex`.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from typing import Any, Final, NamedTuple

from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import AmqpError, DecodeError, EncodeError
from peeklock.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    NULL,
    PROPERTIES,
    Scanned,
    compound_map,
    cut,
    first_field_is_null,
    list_section,
    map_section,
    raw_entries,
    raw_fields,
    replace_section,
    scan,
    value_end,
)
from peeklock.amqp.types import Timestamp
from peeklock.broker.errors import InvalidMessage, InvalidProperty, MessageSizeExceeded
from peeklock.limits.broker import MAX_DELIVERY_ANNOTATIONS, MAX_ID_LENGTH

log = logging.getLogger(__name__)

UINT_MAX: Final = 0xFFFFFFFF
END_OF_TIME: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, as late as clients can say."""
DEFAULT_PRIORITY: Final = 4
_MAX_PRIORITY: Final = 0xFF

# Fields of the properties section (3.2.4).
_MESSAGE_ID, _TO, _ABSOLUTE_EXPIRY, _CREATION_TIME, _GROUP_ID = 0, 2, 8, 9, 10

SCHEDULED_ENQUEUE_TIME = "x-opt-scheduled-enqueue-time"
DELIVERY_TIME = "x-opt-delivery-time"
"""As the former, in the words of JMS; the former counts when there are both."""
PARTITION_KEY = "x-opt-partition-key"
VIA_PARTITION_KEY = "x-opt-via-partition-key"
SEQUENCE_NUMBER = "x-opt-sequence-number"
ENQUEUED_TIME = "x-opt-enqueued-time"
ENQUEUED_SEQUENCE_NUMBER = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL = "x-opt-locked-until"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
MESSAGE_STATE = "x-opt-message-state"
LOCK_TOKEN = "x-opt-lock-token"
_OURS = {
    SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    ENQUEUED_SEQUENCE_NUMBER,
    LOCKED_UNTIL,
    DEAD_LETTER_SOURCE,
    MESSAGE_STATE,
    LOCK_TOKEN,
}
"""Annotations only the broker may set; what a sender says there is not kept."""


_HEADER_START: Final = bytes((0x00, 0x53, HEADER, 0xC0))
_PROPERTIES_START: Final = bytes((0x00, 0x53, PROPERTIES, 0xC0))
_DATA_START: Final = bytes((0x00, 0x53, DATA, 0xA0))
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
"""Octets of a value with this constructor; `_SIZED`: the next one says how many follow; 0: it is none of the usual."""
_LONG_DATA_START: Final = bytes((0x00, 0x53, DATA, 0xB0))


class Annex(NamedTuple):
    """What was in front of the bare message and is not the broker's own. Stored as an AMQP list."""

    priority: int | None = None
    annotations: bytes = b""
    """Keys and values, encoded, one after the other."""
    annotation_fields: int = 0
    dead_letter_source: str | None = None
    ttl_ms: int | None = None
    """Of a scheduled message, whose time to live starts when it is enqueued."""
    enqueued_number: int | None = None
    """The number it was first given, in the entity it was sent to, where that is another one."""
    hops: int = 0
    """How often it was forwarded."""
    delivery_annotations: bytes = b""
    """Those of the sender, which are for us and passed on: a map, encoded. Nothing if there are none."""
    durable: bool = False
    """As the sender's header says. Every message is stored; JMS shows it as the delivery mode."""

    def encode(self) -> bytes:
        # Few messages have the last ones.
        fields = list(self)
        if not self.durable:
            del fields[-1 if self.delivery_annotations else -2 :]
        return encode_value(fields)

    def encode_if_any(self) -> bytes | None:
        return None if self == _EMPTY_ANNEX else self.encode()

    @classmethod
    def decode(cls, data: bytes | None) -> Annex:
        return cls() if data is None else cls(*decode_value(data)[0])


_EMPTY_ANNEX: Final = Annex()
DURABLE: Final = Annex(durable=True).encode()
"""The annex of a message of which nothing needs keeping but that its sender called it durable."""


class Incoming:
    """A message as a sender gave it."""

    __slots__ = ("annex", "bare", "scheduled_at", "session_id", "ttl_ms")

    def __init__(
        self, bare: bytes, annex: bytes | None, ttl_ms: int | None, session_id: str | None, scheduled_at: int | None
    ) -> None:
        self.bare = bare
        self.annex = annex
        self.ttl_ms = ttl_ms
        self.session_id = session_id
        self.scheduled_at = scheduled_at


def read_incoming(data: bytes, wants_session: bool, begin: int = 0, end: int = -1) -> Incoming:
    """Look at an encoded message, which may be a part of `data`: refuse what is none, and take what the broker needs
    from it."""
    if end < 0:
        end = len(data)
    if not wants_session:
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
            identity = _property(found, _MESSAGE_ID)
            if isinstance(identity, str):
                _text(identity, "message id")
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
        if wants_session and properties is not None:
            named = _property(found, _GROUP_ID)
            session_id = _text(named, "session id")
            if session_id is not None and type(named) is bytes:
                bare = with_session_id(bare, session_id)
        return Incoming(bare, annex, ttl_ms, session_id, scheduled_at)
    except AmqpError as error:  # an EncodeError of what has to be written anew: it could not be read back either
        raise InvalidMessage(f"The message could not be read: {error.description}.") from error


def _read_usual(data: bytes, begin: int, end: int) -> Incoming | None:
    """What most messages are: perhaps a header, properties with an id, one data section. None for all others.

    Beside the scan because it takes a third of its time; a test holds them to the same answers. What it reads behind
    the end does no harm, since the data section then does not end there.
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
        if data[at : at + 4] != _PROPERTIES_START or not data[at + 5] or id_code == 0x40:
            return None
        if id_code > 0xA0:
            id_end = at + 8 + data[at + 7]
            # A text that may be too long for an id is for the scan to measure, and to read.
            if id_end > at + 8 + MAX_ID_LENGTH or not data[at + 8 : id_end].isascii():
                return None
        behind = at + 5 + data[at + 4]
        field_at = at + 6
        for _ in range(data[at + 5]):
            width = _WIDTHS[data[field_at]]
            if not width:
                return None
            field_at += 2 + data[field_at + 1] if width == _SIZED else width
        if field_at > behind or _data_end(data, behind) != end:
            return None
    except (IndexError, DecodeError):
        return None  # the scan says what is wrong with it
    return Incoming(data[at:end], annex, ttl_ms, None, None)


def _data_end(data: bytes, at: int) -> int:
    """Where the data section at this place ends; -1 when there is none."""
    start = data[at : at + 4]
    if start == _LONG_DATA_START and len(data) >= at + 8:
        return at + 8 + (data[at + 4] << 24 | data[at + 5] << 16 | data[at + 6] << 8 | data[at + 7])
    if start == _DATA_START and len(data) > at + 4:
        return at + 5 + data[at + 4]
    return -1


def stamp_expiry(bare: bytes, enqueued_at: int, expires_at: int) -> bytes:
    """Write the absolute expiry into the properties, so that all ways to compute it agree.

    Some clients take it as the time from creation to expiry; so a creation time, where there is one, is ours too.
    """
    found = scan(bare)
    try:
        fields = [] if found.properties is None else raw_fields(bare, found.properties)
    except DecodeError:
        return bare  # nobody looked inside when it came; it expires all the same
    fields += [NULL] * (_ABSOLUTE_EXPIRY + 1 - len(fields))
    fields[_ABSOLUTE_EXPIRY] = encode_value(Timestamp(expires_at))
    if len(fields) > _CREATION_TIME and fields[_CREATION_TIME] != NULL:
        fields[_CREATION_TIME] = encode_value(Timestamp(enqueued_at))
    return replace_section(bare, found.properties, list_section(PROPERTIES, fields))


def with_session_id(bare: bytes, session_id: str) -> bytes:
    """The message in a session that its sender named beside it."""
    found = scan(bare)
    fields = [] if found.properties is None else raw_fields(bare, found.properties)
    fields += [NULL] * (_GROUP_ID + 1 - len(fields))
    fields[_GROUP_ID] = encode_value(session_id)
    return replace_section(bare, found.properties, list_section(PROPERTIES, fields))


class AddedProperties:
    """Application properties to be added to messages, or to replace theirs; encoded once for all of them."""

    def __init__(self, properties: dict[Any, Any]) -> None:
        named = {str(key): value for key, value in properties.items()}
        self._names = named.keys()
        self._fields: list[bytes] = []
        for name, value in named.items():
            try:
                self._fields += (encode_value(name), encode_value(value))
            except EncodeError as error:
                raise InvalidProperty(f"A property to add cannot be written: {error.description}.") from error
        self._section = map_section(APPLICATION_PROPERTIES, self._fields)

    @property
    def size(self) -> int:
        """What a message grows by, at most."""
        return len(self._section)

    def to(self, bare: bytes) -> bytes:
        """The message with them; its other application properties keep their bytes."""
        if bare[:4] == _PROPERTIES_START:  # most have one data section behind their properties, or a body elsewhere
            behind = 5 + bare[4]
            if behind == len(bare) or _data_end(bare, behind) == len(bare):
                return b"".join((bare[:behind], self._section, bare[behind:]))
        found = scan(bare)
        part = found.application_properties
        if part is not None:
            return replace_section(bare, part, map_section(APPLICATION_PROPERTIES, self._others(bare, part)))
        if found.properties is not None:
            behind = found.properties.stop
            return b"".join((bare[:behind], self._section, bare[behind:]))
        return replace_section(bare, None, self._section)

    def _others(self, bare: bytes, part: slice) -> list[bytes]:
        fields: list[bytes] = []
        # Nobody looked inside when the message came; what cannot be read is nothing that a receiver could have used.
        with suppress(DecodeError):
            for key, value in raw_entries(bare, part):
                if str(decode_value(key)[0]) not in self._names:
                    fields += (key, value)
        return fields + self._fields


def with_application_properties(bare: bytes, changes: dict[Any, Any]) -> bytes:
    """The message with these application properties added or replaced; the others keep their bytes."""
    return AddedProperties(changes).to(bare) if changes else bare


def dead_letter(bare: bytes, annex: bytes | None, properties: dict[Any, Any], source: str) -> tuple[bytes, bytes]:
    """The message and its annex as a dead letter of that entity, with these application properties.

    One that cannot be read is a dead letter as it is: what cannot be handled has to go somewhere.
    """
    added = AddedProperties(properties) if properties else None
    letter, known = bare, Annex()
    try:
        letter = bare if added is None else added.to(bare)
        known = Annex.decode(annex)
    except (AmqpError, TypeError) as error:
        log.error("a message of '%s' cannot be read; it is dead-lettered as it is: %s", source, error)
    return letter, known._replace(dead_letter_source=source).encode()


def split(bare: bytes) -> tuple[bytes, bytes]:
    """A message in two: what may differ from copy to copy, and its body."""
    found = scan(bare)
    ends = [part.stop for part in (found.properties, found.application_properties) if part is not None]
    end = max(ends, default=0)
    return bare[:end], bare[end:]


def session_id_of(bare: bytes) -> str | None:
    """None when it has none, or its properties cannot be read."""
    try:
        return _text(_property(scan(bare), _GROUP_ID), "session id")
    except DecodeError:
        return None


def message_id_of(bare: bytes) -> str | None:
    """As text, whatever its type; None when the properties cannot be read."""
    try:
        value = _property(scan(bare), _MESSAGE_ID)
    except DecodeError:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def session_of(bare: bytes) -> bytes:
    """What stands for the session id in the message, whatever that is; nothing if nothing does."""
    try:
        value = _property(scan(bare), _GROUP_ID)
    except DecodeError:
        return b""
    return b"" if value is None else _as_bytes(value)


def destination_of(encoded: bytes) -> Any:
    """The `to` of a message as a sender gave it; None if it has none. DecodeError when it cannot be read."""
    return _property(scan(encoded), _TO)


def identity_of(bare: bytes) -> bytes:
    """What makes two messages the same one for duplicate detection: the message id, whatever its type, as text."""
    found = scan(bare)
    try:
        return _as_bytes(_property(found, _MESSAGE_ID))
    except DecodeError:
        return bare if found.properties is None else cut(bare, found.properties)


def partition_key_of(annex: bytes | None) -> bytes:
    """The partition key that came with the message; nothing if none did."""
    encoded = Annex.decode(annex).annotations
    at = 0
    try:
        while at < len(encoded):
            name, at = decode_value(encoded, at)
            end = value_end(encoded, at)
            # Only this one: nobody looked into the others when the message came.
            if name == PARTITION_KEY and encoded[at:end] != NULL:
                return _as_bytes(decode_value(encoded, at)[0])
            at = end
    except DecodeError:
        return encoded
    return b""


def _with_message_id(found: Scanned) -> bytes:
    """A message without an id gets one: some SDKs cannot settle it otherwise."""
    encoded = b"\xa1\x20%032x" % random.getrandbits(128)
    if found.properties is None:
        return b"\x00\x53\x73\xc0\x23\x01" + encoded + found.bare
    fields = raw_fields(found.bare, found.properties) or [NULL]
    fields[_MESSAGE_ID] = encoded
    return replace_section(found.bare, found.properties, list_section(PROPERTIES, fields))


def _property(found: Scanned, index: int) -> Any:
    if found.properties is None:
        return None
    fields = raw_fields(found.bare, found.properties)
    return decode_value(fields[index])[0] if index < len(fields) else None


def _as_bytes(value: Any) -> bytes:
    """A value as text, in UTF-8. A text that came as binary is the same text."""
    return value if type(value) is bytes else str(value).encode()


def _text(value: Any, what: str) -> str | None:
    """A text of at most 128 characters. It may come as binary: the Python SDK sends the strings that it received so."""
    if value is None:
        return None
    if type(value) is bytes:  # and no decimal, which has that base
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InvalidProperty(f"The {what} is binary and not valid UTF-8: send a string.") from None
    if not isinstance(value, str):
        raise InvalidProperty(f"The {what} must be a string.")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidProperty(f"The {what} has {len(value)} characters; at most {MAX_ID_LENGTH} are allowed.")
    return str(value)


# Most headers are one of a few; each is read once. Bounded, so that senders cannot fill it.
_headers: dict[bytes, tuple[int | None, int | None, bool]] = {}


def _read_header(encoded: bytes) -> tuple[int | None, int | None, bool]:
    """Priority and time to live, and whether it says durable."""
    known = _headers.get(encoded)
    if known is not None:
        return known
    values = [decode_value(field)[0] for field in raw_fields(encoded, slice(0, len(encoded)))[:3]]
    values += [None] * (3 - len(values))
    durable, priority, ttl_ms = values
    for name, value, most in (("priority", priority, _MAX_PRIORITY), ("ttl", ttl_ms, UINT_MAX)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most):
            raise DecodeError(f"header.{name} is not a number from 0 to {most}")
    # The default priority needs no keeping: a header without one means the same (3.2.1).
    kept = None if priority in (None, DEFAULT_PRIORITY) else int(priority)
    read = (kept, int(ttl_ms) if ttl_ms else None, durable is True)
    if len(_headers) < 1024 and len(encoded) <= 256:
        _headers[encoded] = read
    return read


def _long_ttl(found: Scanned) -> int | None:
    """A time to live beyond 32 bits stands in the properties, as the way from creation to expiry."""
    expiry, creation = _property(found, _ABSOLUTE_EXPIRY), _property(found, _CREATION_TIME)
    if isinstance(expiry, int) and isinstance(creation, int) and expiry - creation >= UINT_MAX:
        return min(expiry - creation, END_OF_TIME)
    return UINT_MAX


# Messages sent together mostly have the same annotations; each form is read once. Bounded as the headers are.
_annexes: dict[tuple[int | None, bool, bytes], tuple[bytes | None, int | None]] = {}


def _read_annex(priority: int | None, durable: bool, annotations: bytes) -> tuple[bytes | None, int | None]:
    """What is kept of the annotations (a map, encoded, or nothing) and the header; and when it is scheduled."""
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
            text = _text(given, "partition key")
            if type(given) is bytes:
                value = encode_value(text)  # receivers expect a string
        kept += (key, value)
    return kept, delivery_time if scheduled_at is None else scheduled_at


def _with_delivery_annotations(annex: bytes | None, encoded: bytes) -> bytes | None:
    """The annex with what the sender said to the next hop (3.2.2)."""
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
    """The key of an annotation is a symbol, or a ulong, which is reserved (3.2.10)."""
    if not isinstance(name, int) or isinstance(name, bool):
        raise DecodeError("the key of an annotation is not a symbol")

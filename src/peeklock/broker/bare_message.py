"""Reads single fields of an encoded bare message (its properties, application properties and body)."""

from __future__ import annotations

from typing import Any, Final

from peeklock.amqp.codec import decode_value
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.sections import DATA, NULL, PROPERTIES, Scanned, cut, raw_fields, scan, value_end
from peeklock.amqp.service_bus import PARTITION_KEY
from peeklock.broker.annex import Annex
from peeklock.broker.errors import InvalidProperty
from peeklock.limits.broker import MAX_ID_LENGTH

# Fields of the properties section (3.2.4).
MESSAGE_ID, TO, ABSOLUTE_EXPIRY, CREATION_TIME, GROUP_ID = 0, 2, 8, 9, 10

PROPERTIES_START: Final = bytes((0x00, 0x53, PROPERTIES, 0xC0))
_DATA_START: Final = bytes((0x00, 0x53, DATA, 0xA0))
_LONG_DATA_START: Final = bytes((0x00, 0x53, DATA, 0xB0))


def split(bare: bytes) -> tuple[bytes, bytes]:
    """Split a message into its properties, which may differ between copies, and its body."""
    found = scan(bare)
    ends = [part.stop for part in (found.properties, found.application_properties) if part is not None]
    end = max(ends, default=0)
    return bare[:end], bare[end:]


def session_id_of(bare: bytes) -> str | None:
    """Return the session id; None when there is none, or when the properties cannot be decoded."""
    try:
        return text_of(property_of(scan(bare), GROUP_ID), "session id")
    except DecodeError:
        return None


def message_id_of(bare: bytes) -> str | None:
    """Return the message id as text, whatever its type; None when the properties cannot be decoded."""
    try:
        value = property_of(scan(bare), MESSAGE_ID)
    except DecodeError:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def session_of(bare: bytes) -> bytes:
    """Return the session id as bytes, whatever its type; empty when there is none."""
    try:
        value = property_of(scan(bare), GROUP_ID)
    except DecodeError:
        return b""
    return b"" if value is None else _as_bytes(value)


def destination_of(encoded: bytes) -> Any:
    """Return the `to` field of a message with header and annotations; None if it has none.

    Raise DecodeError if the properties cannot be decoded.
    """
    return property_of(scan(encoded), TO)


def identity_of(bare: bytes) -> bytes:
    """Return the key of duplicate detection: the message id as text, whatever its type."""
    found = scan(bare)
    try:
        return _as_bytes(property_of(found, MESSAGE_ID))
    except DecodeError:
        return bare if found.properties is None else cut(bare, found.properties)


def partition_key_of(annex: bytes | None) -> bytes:
    """Return the partition key of the message; empty when there is none."""
    encoded = Annex.decode(annex).annotations
    at = 0
    try:
        while at < len(encoded):
            name, at = decode_value(encoded, at)
            end = value_end(encoded, at)
            # Only this value is decoded: the other values were not checked when the message was sent.
            if name == PARTITION_KEY and encoded[at:end] != NULL:
                return _as_bytes(decode_value(encoded, at)[0])
            at = end
    except DecodeError:
        return encoded
    return b""


def property_of(found: Scanned, index: int) -> Any:
    """Return a decoded field of the properties section; None if the message does not have it."""
    if found.properties is None:
        return None
    fields = raw_fields(found.bare, found.properties)
    return decode_value(fields[index])[0] if index < len(fields) else None


def _as_bytes(value: Any) -> bytes:
    """Return a value as text in UTF-8. A binary value is returned unchanged."""
    return value if type(value) is bytes else str(value).encode()


def text_of(value: Any, what: str) -> str | None:
    """Return an id as text; None if there is none. Raise InvalidProperty if it is not text or is too long.

    The value may be binary: the Python SDK sends strings that it received in that form.
    """
    if value is None:
        return None
    if type(value) is bytes:  # isinstance would include decimals, whose class is derived from bytes
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InvalidProperty(f"The {what} is binary and not valid UTF-8: send a string.") from None
    if not isinstance(value, str):
        raise InvalidProperty(f"The {what} must be a string.")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidProperty(f"The {what} has {len(value)} characters; at most {MAX_ID_LENGTH} are allowed.")
    return str(value)


def data_end(data: bytes, at: int) -> int:
    """Return the end of the data section that begins at an offset; -1 when there is none."""
    start = data[at : at + 4]
    if start == _LONG_DATA_START and len(data) >= at + 8:
        return at + 8 + (data[at + 4] << 24 | data[at + 5] << 16 | data[at + 6] << 8 | data[at + 7])
    if start == _DATA_START and len(data) > at + 4:
        return at + 5 + data[at + 4]
    return -1

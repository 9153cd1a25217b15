"""Encodes the header and annotations of a delivery, which precede the stored bytes of the message."""

from __future__ import annotations

import struct
from typing import Final

from peeklock.amqp.codec import encode_value
from peeklock.amqp.sections import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    NULL,
    compound_body,
    list_section,
    map_section,
)
from peeklock.amqp.service_bus import (
    DEAD_LETTER_SOURCE,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    SEQUENCE_NUMBER,
)
from peeklock.amqp.types import Int, Symbol, UInt
from peeklock.broker.annex import DURABLE, UINT_MAX, Annex
from peeklock.store.base import CLAIMED, DEFERRED, StoredMessage


def _symbol(name: str) -> bytes:
    return encode_value(Symbol(name))


_TO_COUNT: Final = b"\x00\x53\x70\xc0\x07\x05\x40\x40\x40\x40\x52"
"""A header without durable, priority, ttl and first-acquirer, up to the byte with the delivery count."""
_DURABLE_TO_COUNT: Final = b"\x00\x53\x70\xc0\x07\x05\x41\x40\x40\x40\x52"
_LONG, _TIMESTAMP, _SMALL_INT = b"\x81", b"\x83", b"\x54"
_TO_SEQUENCE: Final = _symbol(SEQUENCE_NUMBER) + _LONG
_TO_ENQUEUED: Final = _symbol(ENQUEUED_TIME) + _TIMESTAMP
_TO_ENQUEUED_SEQUENCE: Final = _symbol(ENQUEUED_SEQUENCE_NUMBER) + _LONG
_TO_LOCKED: Final = _symbol(LOCKED_UNTIL) + _TIMESTAMP
_TO_STATE: Final = _symbol(MESSAGE_STATE)
_TO_DEAD_LETTER_SOURCE: Final = _symbol(DEAD_LETTER_SOURCE)
_UUID: Final = b"\x98"
_LOCK_TOKEN_KEY: Final = _symbol(LOCK_TOKEN)
_TO_LOCK_TOKEN: Final = map_section(DELIVERY_ANNOTATIONS, [_LOCK_TOKEN_KEY, _UUID + bytes(16)])[:-16]
_NO_DELIVERY_ANNOTATIONS: Final = map_section(DELIVERY_ANNOTATIONS, [])
_pack_long: Final = struct.Struct(">q").pack


def _opening(entries: bytes, values: int, small: int = 0) -> bytes:
    """Return the start of an annotations section with `values` entries of eight bytes and `small` entries of one."""
    size = len(entries) + 8 * values + small + 1
    assert size < 256
    return b"\x00\x53\x72\xc1" + bytes((size, 2 * (values + small)))


_UNLOCKED_ENTRIES: Final = _TO_SEQUENCE + _TO_ENQUEUED
_TO_SMALL_STATE: Final = _TO_STATE + _SMALL_INT


def _start(before: bytes, entries: bytes, values: int, small: int = 0) -> bytes:
    """Return the bytes between the delivery count or lock token and the sequence number."""
    return before + _opening(entries, values, small) + _TO_SEQUENCE


_LOCKED_ENTRIES: Final = _UNLOCKED_ENTRIES + _TO_LOCKED
_LOCKED_START: Final = _start(b"", _LOCKED_ENTRIES, 3)
_LOCKED_COPY_START: Final = _start(b"", _LOCKED_ENTRIES + _TO_ENQUEUED_SEQUENCE, 4)
_UNLOCKED_START: Final = _start(_NO_DELIVERY_ANNOTATIONS, _UNLOCKED_ENTRIES, 2)
_UNLOCKED_COPY_START: Final = _start(_NO_DELIVERY_ANNOTATIONS, _UNLOCKED_ENTRIES + _TO_ENQUEUED_SEQUENCE, 3)
_PEEKED_ENTRIES: Final = _UNLOCKED_ENTRIES + _TO_SMALL_STATE
_PEEKED_START: Final = _start(b"", _PEEKED_ENTRIES, 2, small=1)
_PEEKED_COPY_START: Final = _start(b"", _PEEKED_ENTRIES + _TO_ENQUEUED_SEQUENCE, 3, small=1)
"""For copies of a topic's message, which have the sequence number of the topic as their last annotation."""
_MIDDLE: Final = f"q{len(_TO_ENQUEUED)}sq"
_pack_locked: Final = struct.Struct(
    f">{len(_TO_COUNT)}sB{len(_TO_LOCK_TOKEN)}s16s{len(_LOCKED_START)}s{_MIDDLE}{len(_TO_LOCKED)}sq"
).pack
_pack_peeked: Final = struct.Struct(f">{len(_TO_COUNT)}sB{len(_PEEKED_START)}s{_MIDDLE}{len(_TO_SMALL_STATE)}sB").pack
_pack_unlocked: Final = struct.Struct(f">{len(_TO_COUNT)}sB{len(_UNLOCKED_START)}s{_MIDDLE}").pack

_pack_first: Final = struct.Struct(f">{len(_TO_ENQUEUED_SEQUENCE)}sq").pack


def head(
    message: StoredMessage,
    locked_until: int | None,
    token: bytes | None = None,
    with_state: bool = False,
    is_copy: bool = False,
) -> bytes:
    """Encode the header and annotations for one delivery of the message; its payload follows them.

    A locked message has its lock token in the delivery annotations, as in the delivery tag (see `lock_tags`). A message
    that is received and deleted has an empty section of delivery annotations, because some clients expect one.
    Forwarded messages and copies in subscriptions also have their first sequence number.
    """
    count = message.delivery_count
    to_count = _TO_COUNT
    if message.annex is not None:
        if message.annex != DURABLE:
            return _full_head(message, locked_until, token, _shown(message.state) if with_state else None, is_copy)
        to_count = _DURABLE_TO_COUNT
    if message.expires_at is not None or count > 255:
        return _full_head(message, locked_until, token, _shown(message.state) if with_state else None, is_copy)
    number = message.sequence_number
    if with_state:
        if locked_until is not None:
            return _full_head(message, locked_until, token, _shown(message.state), is_copy)
        start = _PEEKED_COPY_START if is_copy else _PEEKED_START
        made = _pack_peeked(
            to_count, count, start, number, _TO_ENQUEUED, message.enqueued_at, _TO_SMALL_STATE, _shown(message.state)
        )
    elif token is None or locked_until is None:
        start = _UNLOCKED_COPY_START if is_copy else _UNLOCKED_START
        made = _pack_unlocked(to_count, count, start, number, _TO_ENQUEUED, message.enqueued_at)
    else:
        made = _pack_locked(
            to_count,
            count,
            _TO_LOCK_TOKEN,
            token,
            _LOCKED_COPY_START if is_copy else _LOCKED_START,
            number,
            _TO_ENQUEUED,
            message.enqueued_at,
            _TO_LOCKED,
            locked_until,
        )
    return made + _pack_first(_TO_ENQUEUED_SEQUENCE, number) if is_copy else made


def _shown(state: int) -> int:
    """Return the state to show to clients. A claimed message is shown as deferred: clients do not know claims."""
    return DEFERRED if state == CLAIMED else state


def _delivery_annotations(annex: Annex, token: bytes | None, is_peeked: bool) -> bytes:
    """Return the section of delivery annotations: the sender's annotations, and the lock token."""
    sent = annex.delivery_annotations
    if token is None:
        return (
            bytes((0x00, 0x53, DELIVERY_ANNOTATIONS)) + sent if sent else b"" if is_peeked else _NO_DELIVERY_ANNOTATIONS
        )
    if not sent:
        return _TO_LOCK_TOKEN + token
    at, count = compound_body(sent, 0)
    body = b"".join((_LOCK_TOKEN_KEY, _UUID, token, sent[at:]))
    return struct.pack(">4BII", 0x00, 0x53, DELIVERY_ANNOTATIONS, 0xD1, len(body) + 4, count + 2) + body


def _full_head(
    message: StoredMessage,
    locked_until: int | None,
    token: bytes | None,
    state: int | None = None,
    is_copy: bool = False,
) -> bytes:
    annex = Annex.decode(message.annex)
    ttl = NULL
    if message.expires_at is not None and 0 < message.expires_at - message.enqueued_at <= UINT_MAX:
        ttl = encode_value(UInt(message.expires_at - message.enqueued_at))
    priority = NULL if annex.priority is None else bytes((0x50, annex.priority & 0xFF))
    durable = b"\x41" if annex.durable else NULL
    header = list_section(HEADER, [durable, priority, ttl, NULL, encode_value(UInt(message.delivery_count))])
    header += _delivery_annotations(annex, token, state is not None)
    number = _pack_long(message.sequence_number)
    fields = [_TO_SEQUENCE, number, _TO_ENQUEUED, _pack_long(message.enqueued_at)]
    count = 4 + annex.annotation_fields
    if locked_until is not None:
        fields += (_TO_LOCKED, _pack_long(locked_until))
        count += 2
    if state is not None:
        fields += (_TO_STATE, encode_value(Int(state)))
        count += 2
    first = annex.enqueued_number
    if first is None and is_copy:
        first = message.sequence_number
    if first is not None:
        fields += (_TO_ENQUEUED_SEQUENCE, _pack_long(first))
        count += 2
    if annex.dead_letter_source is not None:
        fields += (_TO_DEAD_LETTER_SOURCE, encode_value(annex.dead_letter_source))
        count += 2
    body = b"".join((*fields, annex.annotations))
    if len(body) < 255 and count < 256:
        return header + bytes((0x00, 0x53, MESSAGE_ANNOTATIONS, 0xC1, len(body) + 1, count)) + body
    return header + struct.pack(">4BII", 0x00, 0x53, MESSAGE_ANNOTATIONS, 0xD1, len(body) + 4, count) + body

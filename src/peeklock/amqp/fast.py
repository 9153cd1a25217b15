"""The hand-written path for `transfer` and `disposition`, beside the declared one in `performatives`.

Both paths give the same bytes and read the same values; a test holds them to it. What is unusual here is left to
the declared path: a decoder returns None for it. Figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from peeklock.amqp.codec import decode_value
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.frames import FRAME_HEADER

_UINT = struct.Struct(">I")
_uint_at = _UINT.unpack_from

TRANSFER_START = b"\x00\x53\x14\xc0"
DISPOSITION_START = b"\x00\x53\x15\xc0"

_BOOLEANS: dict[int, bool | None] = {0x40: None, 0x41: True, 0x42: False}


class TransferFields(NamedTuple):
    """The fields of a transfer, and where its payload starts."""

    handle: int
    delivery_id: int | None
    delivery_tag: bytes | None
    message_format: int | None
    settled: bool | None
    more: bool
    state: Any
    aborted: bool
    payload_at: int


class DispositionFields(NamedTuple):
    role: bool
    first: int
    last: int | None
    settled: bool
    state: Any


# The fields behind those read here take a handful of forms; each is decoded once. The bounds keep a peer from
# filling these tables: a tail that is longer (a transaction's) or comes too late is decoded every time.
_MEMO_LENGTH = 24
_MEMO_ENTRIES = 256
_transfer_tails: dict[bytes, tuple[Any, bool]] = {}
_disposition_tails: dict[bytes, Any] = {}


def _transfer_tail(tail: bytes) -> tuple[Any, bool] | None:
    """The state and `aborted` out of: rcv-settle-mode, state, resume, aborted, batchable."""
    known = _transfer_tails.get(tail)
    if known is not None:
        return known
    fields: list[Any] = []
    at = 0
    while at < len(tail):
        value, at = decode_composite(tail, at) if tail[at] == 0 else decode_value(tail, at)
        fields.append(value)
    if len(fields) > 5:
        return None
    fields += [None] * (5 - len(fields))
    if fields[2] or not isinstance(fields[3], bool | None):
        return None
    read = (fields[1], bool(fields[3]))
    if len(tail) <= _MEMO_LENGTH and len(_transfer_tails) < _MEMO_ENTRIES:
        _transfer_tails[tail] = read
    return read


def decode_transfer(data: bytes, offset: int, end: int) -> TransferFields | None:
    """Read the transfer that starts at `offset` in a frame that ends at `end`."""
    if data[offset : offset + 4] != TRANSFER_START:
        return None
    try:
        payload_at = offset + 5 + data[offset + 4]
        count = data[offset + 5]
        if count < 6 or payload_at > end:
            return None
        at = offset + 6

        code = data[at]
        if code == 0x43:
            handle = 0
            at += 1
        elif code == 0x52:
            handle = data[at + 1]
            at += 2
        elif code == 0x70:
            handle = _uint_at(data, at + 1)[0]
            at += 5
        else:
            return None

        code = data[at]
        delivery_id: int | None
        if code == 0x70:
            delivery_id = _uint_at(data, at + 1)[0]
            at += 5
        elif code == 0x52:
            delivery_id = data[at + 1]
            at += 2
        elif code == 0x43:
            delivery_id = 0
            at += 1
        elif code == 0x40:
            delivery_id = None
            at += 1
        else:
            return None

        code = data[at]
        delivery_tag: bytes | None
        if code == 0xA0:
            start = at + 2
            at = start + data[at + 1]
            delivery_tag = data[start:at]
        elif code == 0x40:
            delivery_tag = None
            at += 1
        else:
            return None

        code = data[at]
        message_format: int | None
        if code == 0x43:
            message_format = 0
            at += 1
        elif code == 0x70:
            message_format = _uint_at(data, at + 1)[0]
            at += 5
        elif code == 0x40:
            message_format = None
            at += 1
        elif code == 0x52:
            message_format = data[at + 1]
            at += 2
        else:
            return None

        settled = _BOOLEANS[data[at]]
        more = _BOOLEANS[data[at + 1]] or False
        at += 2
        if at == payload_at:
            return TransferFields(
                handle, delivery_id, delivery_tag, message_format, settled, more, None, False, payload_at
            )
        if at > payload_at:
            return None
    except (IndexError, KeyError, struct.error):
        return None  # the declared path says what is wrong with it
    tail = _transfer_tail(data[at:payload_at])
    if tail is None:
        return None
    return TransferFields(
        handle, delivery_id, delivery_tag, message_format, settled, more, tail[0], tail[1], payload_at
    )


def decode_disposition(data: bytes, offset: int, end: int) -> DispositionFields | None:
    if data[offset : offset + 4] != DISPOSITION_START:
        return None
    try:
        if offset + 5 + data[offset + 4] != end or data[offset + 5] < 5:
            return None
        at = offset + 6
        role = _BOOLEANS[data[at]]
        at += 1
        code = data[at]
        if code == 0x70:
            first = _uint_at(data, at + 1)[0]
            at += 5
        elif code == 0x52:
            first = data[at + 1]
            at += 2
        elif code == 0x43:
            first = 0
            at += 1
        else:
            return None
        code = data[at]
        last: int | None
        if code == 0x70:
            last = _uint_at(data, at + 1)[0]
            at += 5
        elif code == 0x52:
            last = data[at + 1]
            at += 2
        elif code == 0x40:
            last = None
            at += 1
        elif code == 0x43:
            last = 0
            at += 1
        else:
            return None
        settled = _BOOLEANS[data[at]] or False
        tail = data[at + 1 : end]
    except (IndexError, KeyError, struct.error):
        return None
    if role is None or not tail:
        return None
    try:
        state = _disposition_tails[tail]
    except KeyError:
        if tail[0] == 0:
            state, at = decode_composite(tail, 0)
        else:
            state, at = decode_value(tail, 0)
        if tail[at:] not in (b"", b"\x40", b"\x41", b"\x42"):
            return None
        if len(tail) <= _MEMO_LENGTH and len(_disposition_tails) < _MEMO_ENTRIES:
            _disposition_tails[tail] = state
    return DispositionFields(role, first, last, settled, state)


def encode_uint(value: int) -> bytes:
    if value > 255:
        return b"\x70" + _UINT.pack(value)
    return bytes((0x52, value)) if value else b"\x43"


class TransferEncoder:
    """Writes the single-frame transfers of one link: what never changes is encoded once."""

    __slots__ = ("_after_tag", "_header", "_prefix", "channel", "handle", "overhead")

    # message-format 0, settled, more false, then rcv-settle-mode and state null, resume, aborted, batchable false
    _AFTER_TAG = (b"\x43\x42\x42\x40\x40\x42\x42\x42", b"\x43\x41\x42\x40\x40\x42\x42\x42")

    def __init__(self, channel: int, handle: int) -> None:
        self.channel = channel
        self.handle = handle
        encoded_handle = encode_uint(handle)
        size = 1 + len(encoded_handle) + 5 + 18 + 8
        self._prefix = TRANSFER_START + bytes((size, 11)) + encoded_handle + b"\x70"
        self.overhead = 8 + len(self._prefix) + 4 + 18 + 8
        self._header = FRAME_HEADER.pack

    def encode(self, delivery_id: int, tag: bytes, settled: bool, payload_size: int) -> bytes:
        """The frame up to its payload, for a tag of 16 bytes and a delivery-id above 255."""
        return b"%b%b%b\xa0\x10%b%b" % (
            self._header(self.overhead + payload_size, 2, 0, self.channel),
            self._prefix,
            _UINT.pack(delivery_id),
            tag,
            self._AFTER_TAG[settled],
        )


def encode_disposition(role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """As `Disposition.encode()`; the state is already encoded (`40` for none)."""
    body = b"".join(
        (
            b"\x41" if role else b"\x42",
            encode_uint(first),
            encode_uint(last),
            b"\x41" if settled else b"\x42",
            state,
            b"\x42",
        )
    )
    size = len(body)
    if size < 255:
        return DISPOSITION_START + bytes((size + 1, 6)) + body
    return b"\x00\x53\x15\xd0" + _UINT.pack(size + 4) + _UINT.pack(6) + body

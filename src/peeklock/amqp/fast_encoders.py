"""Hand-written encoders of `transfer` and `disposition`, in addition to the declared ones in `performatives`.

Both produce the same bytes, and a test compares them. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import struct
from typing import Final

from peeklock.amqp.fast_decoders import DISPOSITION_START, TRANSFER_START

_UINT: Final = struct.Struct(">I")


def encode_uint(value: int) -> bytes:
    if value > 255:
        return b"\x70" + _UINT.pack(value)
    return bytes((0x52, value)) if value else b"\x43"


# The fields after the tag, for unsettled and settled: message-format 0, settled, more false, rcv-settle-mode and state
# null, resume, aborted and batchable false.
_AFTER_TAG: Final = (b"\x43\x42\x42\x40\x40\x42\x42\x42", b"\x43\x41\x42\x40\x40\x42\x42\x42")


class TransferEncoder:
    """Encodes the single-frame transfers of one link. The constant parts are encoded once."""

    __slots__ = ("_pack", "_prefix", "overhead")

    def __init__(self, channel: int, handle: int) -> None:
        encoded_handle = encode_uint(handle)
        size = 1 + len(encoded_handle) + 5 + 18 + 8
        self._prefix = b"".join(
            (
                b"\x02\x00",
                channel.to_bytes(2, "big"),
                _UINT.pack(TRANSFER_START),
                bytes((size, 11)),
                encoded_handle,
                b"\x70",
            )
        )
        layout = struct.Struct(f">I{len(self._prefix)}sI2s16s8s")
        self._pack = layout.pack
        self.overhead = layout.size
        """The size of a frame without its payload."""

    def encode(self, delivery_id: int, tag: bytes, settled: bool, payload_size: int) -> bytes:
        """Encode the frame without its payload, for a tag of 16 bytes. The delivery-id always has four octets."""
        return self._pack(
            self.overhead + payload_size, self._prefix, delivery_id, b"\xa0\x10", tag, _AFTER_TAG[settled]
        )


def encode_disposition(role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """Encode a disposition, as `Disposition.encode()` does. `state` is encoded (null, 0x40, for no state)."""
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
        return _UINT.pack(DISPOSITION_START) + bytes((size + 1, 6)) + body
    return b"\x00\x53\x15\xd0" + _UINT.pack(size + 4) + _UINT.pack(6) + body

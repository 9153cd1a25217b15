"""Frames (2.3): protocol headers, the frame header, and the layout of frames. Knows nothing of their bodies."""

from __future__ import annotations

import struct
from typing import Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
MIN_MAX_FRAME_SIZE: Final = 512
"""Every peer must accept frames of this size, and may not offer less (2.3.1)."""

FRAME_HEADER: Final = struct.Struct(">IBBH")
"""Size including this header, data offset in words of four bytes, frame type, channel."""

HEARTBEAT: Final = FRAME_HEADER.pack(8, 2, AMQP_FRAME, 0)


def encode_frame(channel: int, body: bytes, frame_type: int = AMQP_FRAME) -> bytes:
    return FRAME_HEADER.pack(8 + len(body), 2, frame_type, channel) + body

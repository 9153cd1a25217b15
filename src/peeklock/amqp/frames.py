"""Frames (2.3): protocol headers, the frame header, and the layout of frames. The bodies of frames are elsewhere."""

from __future__ import annotations

import struct
from typing import Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
MIN_MAX_FRAME_SIZE: Final = 512
"""The smallest max-frame-size that a peer may set (2.3.1)."""

FRAME_HEADER: Final = struct.Struct(">IBBH")
"""The size including this header, the data offset in words of four bytes, the frame type, and the channel."""

HEARTBEAT: Final = FRAME_HEADER.pack(8, 2, AMQP_FRAME, 0)


def encode_frame(channel: int, body: bytes, frame_type: int = AMQP_FRAME) -> bytes:
    return FRAME_HEADER.pack(8 + len(body), 2, frame_type, channel) + body

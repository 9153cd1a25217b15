"""Recorded frames."""

from __future__ import annotations

import pytest

from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, HEARTBEAT, SASL_FRAME, SASL_HEADER, encode_frame


def test_the_protocol_headers_are_those_of_the_specification() -> None:
    assert bytes.fromhex("414d515000010000") == AMQP_HEADER
    assert bytes.fromhex("414d515003010000") == SASL_HEADER


def test_a_heartbeat_is_an_empty_frame_on_channel_0() -> None:
    assert bytes.fromhex("0000000802000000") == HEARTBEAT


@pytest.mark.parametrize(
    ("channel", "body", "kind", "recorded"),
    [
        (0, b"", 0, "00000008 02 00 0000"),
        (1, b"\x00\x53\x17\x45", 0, "0000000c 02 00 0001 00531745"),
        (65535, b"abc", 0, "0000000b 02 00 ffff 616263"),
        (0, b"x", SASL_FRAME, "00000009 02 01 0000 78"),
    ],
)
def test_a_frame_is_its_size_offset_type_channel_and_body(channel: int, body: bytes, kind: int, recorded: str) -> None:
    frame = encode_frame(channel, body, kind)
    assert frame == bytes.fromhex(recorded)
    assert FRAME_HEADER.unpack_from(frame) == (len(frame), 2, kind, channel)

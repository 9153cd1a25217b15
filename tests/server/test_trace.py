"""Frames in the log: kind, channel and size, without their content."""

from __future__ import annotations

import logging

import pytest

from peeklock.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL_FRAME, SASL_HEADER, encode_frame
from peeklock.amqp.performatives import Begin, Close, Open, Transfer
from peeklock.amqp.sasl import SaslInit
from peeklock.server.trace import FrameReader, Trace

TRANSFER = encode_frame(3, Transfer(handle=0, delivery_id=1, delivery_tag=b"t").encode() + b"SECRET" * 1000)
STREAM = b"".join(
    (
        SASL_HEADER,
        encode_frame(0, SaslInit(mechanism="PLAIN", initial_response=b"SECRET").encode(), SASL_FRAME),
        AMQP_HEADER,
        encode_frame(0, Open(container_id="SECRET").encode()),
        encode_frame(7, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()),
        HEARTBEAT,
        TRANSFER,
        encode_frame(0, Close().encode()),
    )
)
NAMES = ["header", "SaslInit", "header", "Open", "Begin", "heartbeat", "Transfer", "Close"]


@pytest.mark.parametrize("step", [1, 3, 7, 8, 9, 100, 5000, len(STREAM)])
def test_frames_are_found_in_pieces_of_any_size(step: int) -> None:
    reader = FrameReader()
    found = [frame for at in range(0, len(STREAM), step) for frame in reader.read(STREAM[at : at + step])]
    assert [name for name, _, _ in found] == NAMES
    assert [channel for _, channel, _ in found] == [0, 0, 0, 0, 7, 0, 3, 0]
    assert found[6][2] == len(TRANSFER)


def test_bytes_after_an_invalid_frame_are_ignored() -> None:
    reader = FrameReader()
    assert list(reader.read(b"\x00\x00\x00\x01" * 10)) == []
    assert list(reader.read(STREAM)) == []


@pytest.mark.parametrize(
    "body", [b"\x00", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14", b"\xff\xff\xff\xff", b"\x00\x53\xee\x45"]
)
def test_a_frame_of_an_unknown_kind_is_logged_as_unknown(body: bytes) -> None:
    assert [name for name, _, _ in FrameReader().read(encode_frame(0, body))] == ["unknown"]


def test_the_content_of_frames_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trace = Trace(logging.getLogger("trace"), "a-peer")
    trace.received(STREAM)
    trace.sent(STREAM)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"<- {name}" for name in NAMES] + [f"-> {name}" for name in NAMES]
    assert {record.fields["peer"] for record in caplog.records} == {"a-peer"}  # type: ignore[attr-defined]
    assert "SECRET" not in str([vars(record) for record in caplog.records])

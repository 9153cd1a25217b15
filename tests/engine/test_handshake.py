"""Protocol headers and SASL, from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from engine.pair import Pair, attach, only
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from peeklock.amqp.performatives import (
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from peeklock.engine.connection import Connection
from peeklock.engine.events import ConnectionClosed, ConnectionOpened, LinkAttached, SessionBegun
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslClient, SaslServer, plain


def authenticate(mechanism: str, response: bytes) -> Any:
    if mechanism == "PLAIN":
        return "alice" if response == b"\x00alice\x00secret" else None
    return mechanism.lower()


def sasl_server() -> SaslServer:
    return SaslServer(["MSSBCBS", "PLAIN", "ANONYMOUS"], authenticate)


def server_engine() -> Connection:
    return Connection(Settings(container_id="server"), sasl_server(), is_server=True)


def sasl(frame: Any) -> bytes:
    return encode_frame(0, frame.encode(), SASL_FRAME)


def sasl_frames(data: bytes) -> list[Any]:
    """Return the SASL frames after a SASL header, up to the next header."""
    assert data[:8] == SASL_HEADER
    found = []
    at = 8
    while at < len(data) and data[at : at + 4] != b"AMQP":
        found.append(decode_composite(data, at + 8)[0])
        at += FRAME_HEADER.unpack_from(data, at)[0]
    return found


def test_an_anonymous_client_gets_in_and_has_an_identity() -> None:
    pair = Pair.opened(client_sasl=SaslClient(), server_sasl=sasl_server())
    assert pair.client.opened
    assert pair.server.opened
    assert pair.server.identity == "anonymous"
    assert pair.client.identity is None


def test_plain_with_the_right_password_gets_in() -> None:
    pair = Pair.opened(client_sasl=plain("alice", "secret"), server_sasl=sasl_server())
    assert pair.server.opened
    assert pair.server.identity == "alice"


def test_plain_with_a_wrong_password_is_refused_with_outcome_1_and_both_sides_end() -> None:
    pair = Pair.opened(client_sasl=plain("alice", "wrong"), server_sasl=sasl_server())
    assert pair.server.ended
    assert pair.client.ended
    assert pair.server.identity is None
    for events in (pair.client_events, pair.server_events):
        (closed,) = only(ConnectionClosed, events)
        assert closed.error is not None
        assert closed.error.condition == Condition.UNAUTHORIZED_ACCESS
    assert "wrong" not in repr(pair.server_events)


def test_the_clients_error_lists_the_offered_mechanisms() -> None:
    pair = Pair.opened(client_sasl=SaslClient("EXTERNAL"), server_sasl=sasl_server())
    (closed,) = only(ConnectionClosed, pair.client_events)
    assert closed.error is not None
    assert closed.error.condition == Condition.NOT_IMPLEMENTED
    assert "EXTERNAL" in closed.error.description
    assert "MSSBCBS, PLAIN, ANONYMOUS" in closed.error.description


def test_a_mechanism_that_was_not_offered_is_refused_without_authentication() -> None:
    asked: list[str] = []
    engine = Connection(
        Settings(container_id="server"),
        SaslServer(["PLAIN"], lambda mechanism, response: asked.append(mechanism) or "somebody"),
        is_server=True,
    )
    events = engine.receive(SASL_HEADER + sasl(SaslInit(mechanism="ANONYMOUS")))
    assert sasl_frames(b"".join(engine.take_output()))[-1] == SaslOutcome(code=1)
    assert asked == []
    assert engine.ended
    assert only(ConnectionClosed, events)


def test_the_server_offers_its_mechanisms_as_an_array_right_after_its_header() -> None:
    engine = server_engine()
    engine.receive(SASL_HEADER)
    data = b"".join(engine.take_output())
    assert sasl_frames(data) == [SaslMechanisms(sasl_server_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS"])]
    assert b"\xe0" in data  # array8, never a single symbol


def test_an_amqp_header_without_sasl_is_accepted_without_an_identity() -> None:
    pair = Pair.opened(server_sasl=sasl_server())
    assert pair.server.opened
    assert pair.server.identity is None


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"AMQP\x00\x00\x09\x01",  # AMQP 0-9-1
        b"AMQP\x02\x01\x00\x00",  # TLS inside AMQP
        b"\x16\x03\x01\x02\x00\x01",
        b"X",
    ],
)
def test_any_other_header_gets_the_amqp_header_as_answer_and_the_end(header: bytes) -> None:
    engine = server_engine()
    events = engine.receive(header)
    assert engine.take_output() == [AMQP_HEADER]
    assert engine.ended
    assert [type(event) for event in events] == [ConnectionClosed]


def test_nothing_is_sent_or_parsed_after_a_refused_header() -> None:
    engine = server_engine()
    engine.receive(b"GET / HTTP/1.1\r\n")
    engine.take_output()
    assert engine.receive(b"Host: localhost\r\n\r\n") == []
    assert engine.receive(AMQP_HEADER) == []
    assert engine.take_output() == []


def test_a_server_without_sasl_refuses_the_sasl_header() -> None:
    engine = Connection(Settings(container_id="server"), is_server=True)
    engine.receive(SASL_HEADER)
    assert engine.take_output() == [AMQP_HEADER]
    assert engine.ended


def test_a_client_that_requires_sasl_does_not_continue_without_it() -> None:
    engine = Connection(Settings(container_id="client"), plain("alice", "secret"), is_server=False)
    engine.connect()
    assert engine.take_output() == [SASL_HEADER]
    (closed,) = engine.receive(AMQP_HEADER)
    assert isinstance(closed, ConnectionClosed)
    assert engine.ended
    assert engine.take_output() == []


def test_a_second_sasl_exchange_is_refused() -> None:
    engine = server_engine()
    engine.receive(SASL_HEADER + sasl(SaslInit(mechanism="ANONYMOUS")) + SASL_HEADER)
    assert engine.ended


def test_an_amqp_frame_instead_of_a_sasl_frame_ends_the_connection() -> None:
    engine = server_engine()
    (closed,) = engine.receive(SASL_HEADER + encode_frame(0, SaslInit(mechanism="ANONYMOUS").encode()))
    assert closed.error.condition == Condition.FRAMING_ERROR
    assert engine.identity is None


@pytest.mark.parametrize("frame", [SaslResponse(response=b"x"), SaslMechanisms(sasl_server_mechanisms=["A"])])
def test_a_sasl_frame_out_of_order_ends_the_connection(frame: Any) -> None:
    engine = server_engine()
    (closed,) = engine.receive(SASL_HEADER + sasl(frame))
    assert closed.error.condition == Condition.ILLEGAL_STATE
    assert engine.ended


def test_an_open_inside_the_sasl_exchange_ends_the_connection() -> None:
    engine = server_engine()
    engine.receive(SASL_HEADER + sasl(Open(container_id="x")))
    assert engine.ended


def test_a_challenge_is_more_than_the_client_knows() -> None:
    engine = Connection(Settings(container_id="client"), SaslClient(), is_server=False)
    engine.connect()
    mechanisms = sasl(SaslMechanisms(sasl_server_mechanisms=["ANONYMOUS"]))
    (closed,) = engine.receive(SASL_HEADER + mechanisms + sasl(SaslChallenge(challenge=b"?")))
    assert closed.error.condition == Condition.NOT_IMPLEMENTED


def test_a_sasl_frame_above_512_bytes_is_refused_before_it_is_read() -> None:
    engine = server_engine()
    (closed,) = engine.receive(SASL_HEADER + FRAME_HEADER.pack(513, 2, SASL_FRAME, 0))
    assert closed.error.condition == Condition.FRAMING_ERROR
    assert "513" in closed.error.description


def test_an_empty_sasl_frame_is_passed_over() -> None:
    engine = server_engine()
    engine.receive(SASL_HEADER + FRAME_HEADER.pack(8, 2, SASL_FRAME, 0))
    assert not engine.ended


def test_a_client_that_sends_everything_at_once_is_served_from_one_read() -> None:
    pair = Pair(server_sasl=sasl_server())
    pair.client.connect()
    link = pair.client.begin().sender("$cbs")
    link.attach(attach(link))
    sasl_part = SASL_HEADER + sasl(SaslInit(mechanism="ANONYMOUS"))
    events = pair.server.receive(sasl_part + b"".join(pair.client.take_output()))
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun, LinkAttached]
    only(LinkAttached, events)[0].link.accept()
    answer = b"".join(pair.server.take_output())
    assert sasl_frames(answer)[-1] == SaslOutcome(code=0)
    pair.client.receive(answer[answer.index(AMQP_HEADER) :])
    assert link.attached


def test_all_of_it_may_arrive_byte_by_byte() -> None:
    pair = Pair.opened(client_sasl=plain("alice", "secret"), server_sasl=sasl_server(), chunk=1)
    sender, receiver = pair.sending()
    sender.send(b"tag", [b"payload"])
    pair.pump()
    assert [delivery.payload for delivery in pair.received()] == [b"payload"]
    assert receiver.attached


def test_a_client_may_read_outcome_header_and_open_at_once() -> None:
    engine = Connection(Settings(container_id="client"), SaslClient(), is_server=False)
    engine.connect()
    engine.receive(SASL_HEADER + sasl(SaslMechanisms(sasl_server_mechanisms=["ANONYMOUS"])))
    rest = AMQP_HEADER + encode_frame(0, Open(container_id="server").encode())
    events = engine.receive(sasl(SaslOutcome(code=0)) + rest)
    assert [type(event) for event in events] == [ConnectionOpened]
    assert engine.opened
    assert AMQP_HEADER in engine.take_output()

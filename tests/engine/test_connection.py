"""Open and close, channels, frames, and what an error of the peer ends."""

from __future__ import annotations

from typing import Any

import pytest

from engine.pair import Pair, Peer, only
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_FRAME, AMQP_HEADER, FRAME_HEADER, HEARTBEAT, SASL_FRAME, encode_frame
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Flow,
    Open,
    Source,
    Transfer,
)
from peeklock.engine.connection import Connection
from peeklock.engine.errors import CloseConnection
from peeklock.engine.events import ConnectionClosed, ConnectionOpened, ConnectionRefused, SessionBegun, SessionEnded
from peeklock.engine.opening import Settings
from peeklock.engine.states import ConnectionState


def condition_of(events: list[Any]) -> str:
    (closed,) = only(ConnectionClosed, events)
    assert closed.error is not None
    return closed.error.condition


# --- open and close ---


def test_both_sides_have_the_capabilities_that_the_peer_offers() -> None:
    pair = Pair.opened(
        Settings(container_id="c", hostname="localhost", max_frame_size=70000, channel_max=7),
        Settings(container_id="s", idle_time_out_ms=5000, properties={"product": "test"}),
    )
    (to_server,) = only(ConnectionOpened, pair.server_events)
    assert (to_server.open.container_id, to_server.open.hostname) == ("c", "localhost")
    assert (to_server.open.max_frame_size, to_server.open.channel_max) == (70000, 7)
    (to_client,) = only(ConnectionOpened, pair.client_events)
    assert (to_client.open.container_id, to_client.open.idle_time_out) == ("s", 5000)
    assert to_client.open.properties == {"product": "test"}


@pytest.mark.parametrize(
    ("theirs", "answered"), [(512, 65536), (65535, 65536), (65536, 65536), (70000, 70000), (1 << 20, 262144)]
)
def test_an_open_is_answered_with_a_frame_size_of_at_most_the_clients(theirs: int, answered: int) -> None:
    pair = Pair.opened(Settings(container_id="c", max_frame_size=theirs), Settings(container_id="s"))
    (to_client,) = only(ConnectionOpened, pair.client_events)
    assert to_client.open.max_frame_size == answered


def test_an_open_that_is_answered_with_small_frames_keeps_its_own_limit() -> None:
    pair = Pair.opened(
        Settings(container_id="c", max_frame_size=1 << 20), Settings(container_id="s", max_frame_size=1024)
    )
    (to_client,) = only(ConnectionOpened, pair.client_events)
    assert to_client.open.max_frame_size == 1024


def test_an_open_says_what_can_be_asked_for() -> None:
    pair = Pair.opened(None, Settings(container_id="s", offered_capabilities=("A", "B")))
    (opened,) = only(ConnectionOpened, pair.client_events)
    assert opened.open.offered_capabilities == ["A", "B"]


def test_a_server_may_look_at_an_open_before_it_answers() -> None:
    pair = Pair(Settings(container_id="c"))
    asked: list[str] = []

    def check(opened: Open) -> None:
        asked.append(opened.container_id)
        pair.server.offered_capabilities.append("ON-DEMAND")

    pair.server.check_open = check
    pair.client.connect()
    pair.pump()
    assert asked == ["c"]
    (opened,) = only(ConnectionOpened, pair.client_events)
    assert opened.open.offered_capabilities == ["ON-DEMAND"]


def test_an_open_that_is_refused_is_answered_with_a_mark_and_left_to_the_owner_to_close() -> None:
    pair = Pair()
    refusal = Error(condition=Condition.INVALID_FIELD, description="another one has the id")
    pair.server.check_open = lambda opened: refusal
    pair.client.connect()
    pair.pump()
    (opened,) = only(ConnectionOpened, pair.client_events)
    assert opened.open.properties == {"amqp:connection-establishment-failed": True}
    assert only(ConnectionRefused, pair.server_events) == [ConnectionRefused(refusal)]
    assert not only(ConnectionOpened, pair.server_events)
    pair.server.close(refusal)
    pair.pump()
    assert condition_of(pair.client_events) == Condition.INVALID_FIELD


def test_a_client_writes_header_and_open_without_waiting() -> None:
    client = Connection(Settings(container_id="c"), is_server=False)
    client.connect()
    written = b"".join(client.take_output())
    assert written.startswith(AMQP_HEADER)
    assert len(written) > len(AMQP_HEADER)


def test_a_close_from_the_client_is_answered_and_ends_both() -> None:
    pair = Pair.opened()
    pair.client.close(Error(condition=Condition.NOT_ALLOWED, description="enough"))
    pair.pump()
    assert pair.client.ended
    assert pair.server.ended
    (closed,) = only(ConnectionClosed, pair.server_events)
    assert closed.error == Error(condition=Condition.NOT_ALLOWED, description="enough")


def test_a_close_from_the_server_is_answered_and_ends_both() -> None:
    pair = Pair.opened()
    pair.server.close(Error(condition=Condition.CONNECTION_FORCED, description="going down"))
    pair.pump()
    assert pair.client.ended
    assert pair.server.ended
    assert condition_of(pair.client_events) == Condition.CONNECTION_FORCED


def test_closing_twice_still_waits_for_the_answer() -> None:
    pair = Pair.opened()
    pair.client.close()
    pair.client.close()
    assert pair.client.state is ConnectionState.CLOSE_SENT
    pair.pump()
    assert pair.client.ended


def test_both_sides_may_close_at_once() -> None:
    pair = Pair.opened()
    pair.client.close()
    pair.server.close()
    pair.pump()
    assert pair.client.ended
    assert pair.server.ended


def test_frames_between_our_close_and_its_answer_are_ignored() -> None:
    peer = Peer()
    peer.begin()
    peer.attach()
    peer.engine.close()
    peer.answers()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t")
    assert peer.send(0, transfer, b"x" * 100) == []
    assert peer.send(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)) == []
    assert peer.answers() == []
    peer.send(0, Close())
    assert peer.engine.ended


def test_closing_before_anything_was_heard_just_ends() -> None:
    engine = Connection(Settings(container_id="s"), is_server=True)
    engine.close()
    assert engine.ended
    assert engine.take_output() == []


def test_a_client_may_close_before_the_answer_to_its_open() -> None:
    pair = Pair()
    pair.client.connect()
    pair.client.close()
    pair.pump()
    assert pair.client.ended
    assert pair.server.ended
    assert condition_free(pair.server_events)


def condition_free(events: list[Any]) -> bool:
    return [event.error for event in only(ConnectionClosed, events)] == [None]


def test_a_server_that_closes_instead_of_opening_is_heard() -> None:
    peer = Peer(is_server=False, open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Close(error=Error(condition=Condition.CONNECTION_FORCED, description="busy")))
    assert condition_of(peer.events) == Condition.CONNECTION_FORCED
    assert peer.engine.ended


def test_a_second_open_closes_the_connection() -> None:
    peer = Peer()
    peer.send(0, Open(container_id="again"))
    assert condition_of(peer.events) == Condition.ILLEGAL_STATE
    assert isinstance(peer.answers()[-1], Close)
    assert peer.engine.ended


@pytest.mark.parametrize(
    "performative",
    [
        Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1),
        Attach(name="l", handle=0, role=True),
        Transfer(handle=0),
        Detach(handle=0),
        End(),
    ],
)
def test_nothing_but_open_comes_first(performative: Any) -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, performative)
    assert condition_of(peer.events) == Condition.ILLEGAL_STATE
    assert [type(answer) for answer in peer.answers()] == [Open, Close]


def test_a_max_frame_size_below_512_is_refused_with_a_reason_the_peer_can_read() -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", max_frame_size=511))
    assert condition_of(peer.events) == Condition.INVALID_FIELD
    answers = peer.answers()
    assert [type(answer) for answer in answers] == [Open, Close]
    assert "511" in answers[1].error.description


def test_a_long_open_error_still_fits_a_peer_with_small_frames() -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", max_frame_size=512))
    peer.answers()
    peer.engine.close(Error(condition=Condition.INTERNAL_ERROR, description="x" * 5000, info={"a": "b"}))
    (frame,) = peer.engine.take_output()
    assert len(frame) <= 512


# --- frames ---


def test_a_frame_above_our_max_frame_size_closes_before_its_body_arrives() -> None:
    peer = Peer(settings=Settings(container_id="s", max_frame_size=1024))
    peer.raw(FRAME_HEADER.pack(1025, 2, AMQP_FRAME, 0))
    assert condition_of(peer.events) == Condition.FRAMING_ERROR
    assert "1025" in only(ConnectionClosed, peer.events)[0].error.description


@pytest.mark.parametrize(
    "header",
    [
        FRAME_HEADER.pack(8, 1, AMQP_FRAME, 0),  # data inside the header
        FRAME_HEADER.pack(8, 3, AMQP_FRAME, 0),  # data behind the frame
        FRAME_HEADER.pack(7, 2, AMQP_FRAME, 0),
        FRAME_HEADER.pack(0, 2, AMQP_FRAME, 0),
        FRAME_HEADER.pack(8, 2, SASL_FRAME, 0),
        FRAME_HEADER.pack(8, 2, 7, 0),
    ],
)
def test_a_frame_header_that_makes_no_sense_closes(header: bytes) -> None:
    peer = Peer()
    peer.begin()
    peer.raw(header + bytes(16))
    assert condition_of(peer.events) == Condition.FRAMING_ERROR


def test_a_transfer_shorter_than_its_frame_size_closes_the_connection() -> None:
    peer = Peer()
    peer.begin()
    peer.raw(FRAME_HEADER.pack(3, 2, AMQP_FRAME, 0) + b"\x00\x53\x14\xc0" + bytes(20))
    assert condition_of(peer.events) == Condition.FRAMING_ERROR


def test_an_extended_frame_header_is_passed_over() -> None:
    peer = Peer()
    body = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()
    peer.raw(FRAME_HEADER.pack(12 + len(body), 3, AMQP_FRAME, 0) + b"\xff" * 4 + body)
    assert only(SessionBegun, peer.events)


def test_an_empty_frame_is_a_heartbeat_and_nothing_else() -> None:
    peer = Peer()
    assert peer.raw(HEARTBEAT) == []
    assert peer.engine.opened


@pytest.mark.parametrize("body", [Accepted().encode(), b"\x43", b"\x00\x53\x10\x43", b"\x00\x53\x99\x45"])
def test_a_body_that_is_no_performative_closes(body: bytes) -> None:
    peer = Peer()
    peer.raw(encode_frame(0, body))
    assert peer.engine.ended
    assert isinstance(peer.answers()[-1], Close)


def test_data_after_a_fatal_error_in_the_same_read_is_not_parsed() -> None:
    peer = Peer()
    begin = encode_frame(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode())
    events = peer.raw(encode_frame(0, b"\x43") + begin)
    assert [type(event) for event in events] == [ConnectionClosed]
    assert peer.raw(begin) == []


# --- channels ---


def test_a_channel_above_our_channel_max_closes() -> None:
    peer = Peer(settings=Settings(container_id="s", channel_max=3))
    peer.begin(3)
    peer.send(4, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert condition_of(peer.events) == Condition.NOT_ALLOWED


def test_we_begin_no_more_sessions_than_the_peer_allows() -> None:
    pair = Pair.opened(server_settings=Settings(container_id="s", channel_max=1))
    pair.client.begin()
    pair.client.begin()
    with pytest.raises(CloseConnection, match="all 2 channels"):
        pair.client.begin()


def test_a_channel_is_used_again_after_its_session_has_ended() -> None:
    pair = Pair.opened(server_settings=Settings(container_id="s", channel_max=0))
    for _ in range(3):
        session, _ = pair.sessions()
        assert session.channel == 0
        session.end()
        pair.pump()


def test_a_second_begin_on_a_channel_closes() -> None:
    peer = Peer()
    peer.begin(2)
    peer.send(2, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert condition_of(peer.events) == Condition.NOT_ALLOWED


def test_an_answer_to_a_begin_that_never_was_closes() -> None:
    peer = Peer()
    peer.send(0, Begin(remote_channel=5, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert condition_of(peer.events) == Condition.NOT_ALLOWED


def test_a_begin_is_answered_once() -> None:
    peer = Peer(is_server=False)
    peer.engine.begin()
    answer = Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    peer.send(0, answer)
    peer.send(1, answer)
    assert condition_of(peer.events) == Condition.NOT_ALLOWED


@pytest.mark.parametrize(
    "performative",
    [
        Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False),
        Attach(name="l", handle=0, role=True),
        Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1),
        Detach(handle=0),
        End(),
    ],
)
def test_a_frame_on_an_unmapped_channel_closes(performative: Any) -> None:
    peer = Peer()
    peer.begin(0)
    peer.send(1, performative)
    assert condition_of(peer.events) == Condition.NOT_ALLOWED
    assert "channel 1" in only(ConnectionClosed, peer.events)[0].error.description


# --- how far an error reaches ---


def test_an_error_of_one_session_does_not_affect_other_sessions() -> None:
    peer = Peer()
    first, second = peer.begin(0), peer.begin(1)
    peer.send(0, Detach(handle=9))
    (ended,) = only(SessionEnded, peer.events)
    assert ended.session is first
    assert ended.error is not None
    assert ended.error.condition == Condition.UNATTACHED_HANDLE
    assert peer.engine.opened
    peer.answers()
    peer.send(1, Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True))
    ((channel, _, _),) = peer.frames()
    assert channel == second.channel


def test_a_performative_over_the_peers_frame_size_closes_the_connection_at_the_next_turn() -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", max_frame_size=512))
    peer.begin()
    peer.attach_only(0, role=True)
    (link,) = only(SessionBegun, peer.events)[0].session.links
    link.accept(source=Source(address="q" * 600))
    assert peer.engine.ended
    assert condition_of(peer.engine.tick(0)) == Condition.FRAME_SIZE_TOO_SMALL
    assert [type(answer) for answer in peer.answers()] == [Open, Begin, Close]


def test_nothing_is_written_once_the_connection_is_over() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    pair.server.close()
    pair.pump()
    receiver.grant(5)
    receiver.detach()
    receiver.session.end()
    sender.detach()
    sender.session.end()
    assert not sender.ready()
    assert pair.client.take_output() == []
    assert pair.server.take_output() == []

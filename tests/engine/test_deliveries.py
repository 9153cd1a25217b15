"""Incoming and outgoing transfers, settle modes, and ranges of dispositions."""

from __future__ import annotations

from typing import Any

import pytest

from engine.pair import TAG, Pair, Peer, only
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, HEARTBEAT
from peeklock.amqp.performatives import (
    Accepted,
    Detach,
    Disposition,
    Error,
    Modified,
    Open,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from peeklock.engine import links
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.events import ConnectionClosed, IncomingDisposed, LinkDetached, OutgoingDisposed, SessionEnded
from peeklock.engine.links import Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.limits.amqp import MAX_INCOMING_UNSETTLED

ACCEPTED = Accepted().encode()
RELEASED = Released().encode()
LAST_ID = 0xFFFFFFFF


def small_frames() -> Settings:
    return Settings(container_id="small", max_frame_size=512)


def sending_peer() -> tuple[Peer, Receiver]:
    """Return a peer that sends on handle 0."""
    peer = Peer()
    peer.begin()
    receiver = peer.attach()
    assert isinstance(receiver, Receiver)
    peer.answers()
    return peer, receiver


def receiving_peer(credit: int = 1000) -> tuple[Peer, Sender]:
    """Return a peer that receives on handle 0."""
    peer = Peer()
    peer.begin(incoming_window=100_000)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=credit, incoming_window=100_000)
    peer.answers()
    return peer, sender


def transfer(delivery_id: int | None, **fields: Any) -> Transfer:
    tag = None if delivery_id is None else b"%d" % delivery_id
    return Transfer(**{"handle": 0, "delivery_id": delivery_id, "delivery_tag": tag, **fields})


def send_one(sender: Sender, tag: bytes = TAG, **options: Any) -> OutgoingDelivery:
    delivery = sender.send(tag, (b"message",), **options)
    assert delivery is not None
    return delivery


# --- whole messages ---


@pytest.mark.parametrize("tag", [b"", b"t", TAG, bytes(32)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_arrives_with_its_tag_and_bytes(tag: bytes, settled: bool) -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    delivery = sender.send(tag, (b"he", b"", b"llo"), settled=settled)
    pair.pump()
    (received,) = pair.received()
    assert (received.tag, received.payload, received.settled) == (tag, b"hello", settled)
    assert (received.link, received.message_format, received.oversize) == (receiver, 0, False)
    assert (delivery is None) == settled


def test_message_format_and_state_travel_with_the_message() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    state = TransactionalState(txn_id=b"txn")
    sender.send(TAG, (b"x",), message_format=0x80013700, state=state)
    pair.pump()
    (received,) = pair.received()
    assert received.message_format == 0x80013700
    assert received.state == state


def test_a_batch_of_messages_arrives_from_one_read_in_order() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending(credit=1000)
    for number in range(600):
        sender.send(number.to_bytes(16, "big"), (b"%d" % number,))
    pair.pump()
    assert [delivery.payload for delivery in pair.received()] == [b"%d" % number for number in range(600)]
    assert [delivery.delivery_id for delivery in pair.received()] == list(range(600))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 8, 9, 50, 99, 100, 101, 1000])
def test_received_bytes_may_be_split_anywhere(piece: int) -> None:
    pair = Pair.opened()
    sender, _ = pair.sending(credit=1000)
    bodies = [b"%d" % number * (number * 7 % 40) for number in range(60)]
    for number, body in enumerate(bodies):
        sender.send(number.to_bytes(16, "big"), (body,))
        if number % 5 == 0:
            sender.session.connection.out.append(HEARTBEAT)
    written = b"".join(pair.client.take_output())
    for at in range(0, len(written), piece):
        pair.server_events += pair.server.receive(written[at : at + piece])
    assert [delivery.payload for delivery in pair.received()] == bodies
    assert [delivery.delivery_id for delivery in pair.received()] == list(range(60))


def test_what_follows_a_frame_that_was_cut_is_refused_for_what_it_is() -> None:
    for cut in (4, 8, 20):
        pair = Pair.opened()
        sender, _ = pair.sending(credit=1000)
        sender.send(TAG, (b"first",))
        written = b"".join(pair.client.take_output()) + b"\x00\x00\x00\x07\x02\x00\x00\x00"
        pair.server_events += pair.server.receive(written[:cut])
        pair.server_events += pair.server.receive(written[cut:] + b"never looked at")
        assert [delivery.payload for delivery in pair.received()] == [b"first"]
        (closed,) = only(ConnectionClosed, pair.server_events)
        assert closed.error.condition == Condition.FRAMING_ERROR


def test_the_server_sends_in_the_same_way() -> None:
    pair = Pair.opened()
    _, sender = pair.receiving(credit=1000)
    for number in range(600):
        sender.send(number.to_bytes(16, "big"), (b"%d" % number,))
    pair.pump()
    received = only(IncomingDelivery, pair.client_events)
    assert [delivery.payload for delivery in received] == [b"%d" % number for number in range(600)]


def test_delivery_ids_are_consecutive_over_all_links_of_a_session() -> None:
    pair = Pair.opened()
    session, _ = pair.sessions()
    first, _ = pair.sending(session, name="a")
    second, _ = pair.sending(session, name="b")
    for link in (first, second, second, first):
        link.send(TAG, (b"x",))
    pair.pump()
    assert [delivery.delivery_id for delivery in pair.received()] == [0, 1, 2, 3]


def test_every_first_frame_has_id_tag_and_format() -> None:
    peer, sender = receiving_peer()
    for _ in range(300):
        sender.send(TAG, (b"x",))
    for number, (_, performative, payload) in enumerate(peer.frames()):
        assert (performative.delivery_id, performative.delivery_tag) == (number, TAG)
        assert (performative.message_format, performative.settled, payload) == (0, False, b"x")


# --- several frames ---


@pytest.mark.parametrize("size", [0, 1, 400, 450, 512, 513, 1024, 5000, 300_000])
@pytest.mark.parametrize("many_before", [False, True])
def test_a_message_of_any_size_crosses_small_frames_in_both_directions(size: int, many_before: bool) -> None:
    pair = Pair.opened(small_frames(), small_frames())
    sender, receiver = pair.sending(credit=1000)
    _, back = pair.receiving(sender.session, name="back", credit=1000)
    for link in (sender, back):
        link.session.next_delivery_id = 1000 if many_before else 0
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    sender.send(TAG, (payload[:100], payload[100:]))
    back.send(TAG, (payload,))
    pair.pump()
    for events in (pair.server_events, pair.client_events):
        assert [delivery.payload for delivery in only(IncomingDelivery, events)] == [payload]
    assert receiver.credit == 999


def test_no_frame_is_larger_than_the_peers_maximum() -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", max_frame_size=600))
    peer.begin(incoming_window=1000)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=1000)
    for first_id in (0, 1000):
        sender.session.next_delivery_id = first_id
        for size in range(480, 660):
            sender.send(TAG, (bytes(size),), settled=True)
            data = b"".join(peer.engine.take_output())
            at = data.index(b"\x00\x53\x14") - 8
            while at < len(data):
                frame_size = FRAME_HEADER.unpack_from(data, at)[0]
                assert frame_size <= 600
                at += frame_size


def test_only_the_first_frame_names_the_delivery() -> None:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", max_frame_size=512))
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=1)
    peer.answers()
    sender.send(TAG, (bytes(1200),), settled=True)
    first, *middle, last = peer.answers()
    assert (first.delivery_id, first.delivery_tag, first.more, first.settled) == (0, TAG, True, True)
    assert [(frame.delivery_id, frame.delivery_tag, frame.more) for frame in middle] == [(None, None, True)]
    assert (last.delivery_id, last.more, last.settled) == (None, False, True)


def test_frames_of_two_links_may_be_mixed() -> None:
    peer, _ = sending_peer()
    peer.attach(1, name="other")
    peer.send(0, transfer(0, more=True), b"a1")
    peer.send(0, transfer(1, handle=1, more=True), b"b1")
    peer.send(0, transfer(None, more=False), b"a2")
    peer.send(0, transfer(None, handle=1, more=False), b"b2")
    assert [delivery.payload for delivery in only(IncomingDelivery, peer.events)] == [b"a1a2", b"b1b2"]


def test_the_delivery_id_may_be_repeated_on_following_frames() -> None:
    peer, _ = sending_peer()
    peer.send(0, transfer(0, more=True), b"a")
    (delivery,) = peer.send(0, transfer(0, more=False), b"b")
    assert delivery.payload == b"ab"


def test_settled_may_come_with_the_last_frame() -> None:
    peer, receiver = sending_peer()
    peer.send(0, transfer(0, more=True), b"a")
    (delivery,) = peer.send(0, transfer(None, settled=True), b"b")
    assert delivery.settled
    assert receiver.session.incoming_unsettled == {}


def test_an_aborted_delivery_is_forgotten_and_costs_one_credit() -> None:
    peer, receiver = sending_peer()
    peer.send(0, transfer(0, more=True), b"a" * 50)
    assert peer.send(0, transfer(None, aborted=True)) == []
    (delivery,) = peer.send(0, transfer(1), b"next")
    assert delivery.payload == b"next"
    assert (receiver.credit, receiver.delivery_count) == (98, 2)
    assert list(receiver.session.incoming_unsettled) == [1]


def test_a_delivery_aborted_in_its_only_frame_is_no_delivery() -> None:
    peer, _ = sending_peer()
    assert peer.send(0, transfer(0, aborted=True), b"x" * 20) == []


def test_a_new_delivery_inside_another_detaches_the_link() -> None:
    peer, receiver = sending_peer()
    peer.send(0, transfer(0, more=True), b"a")
    (detached,) = peer.send(0, transfer(1), b"b")
    assert isinstance(detached, LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == Condition.INVALID_FIELD
    assert peer.answers() == [Detach(handle=0, closed=True, error=detached.error)]
    assert receiver.session.incoming_unsettled == {}


@pytest.mark.parametrize("first", [transfer(None, delivery_tag=b"t"), transfer(0, delivery_tag=None)])
def test_a_first_transfer_without_id_or_tag_detaches_the_link(first: Transfer) -> None:
    peer, _ = sending_peer()
    (detached,) = peer.send(0, first, b"x" * 20)
    assert isinstance(detached, LinkDetached)
    assert peer.engine.opened


def test_a_transfer_on_a_link_that_we_send_on_ends_the_session() -> None:
    peer, _ = receiving_peer()
    (ended,) = peer.send(0, transfer(0), b"x" * 20)
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == Condition.NOT_ALLOWED


# --- limits ---


@pytest.mark.parametrize("pieces", [[101], [60, 41], [60, 60, 60, 1]])
def test_a_message_above_the_limit_is_flagged_and_its_bytes_are_not_kept(pieces: list[int]) -> None:
    peer, receiver = sending_peer()
    receiver.max_message_size = 100
    for number, size in enumerate(pieces):
        more = number < len(pieces) - 1
        peer.send(0, transfer(0 if number == 0 else None, more=more), bytes(size))
    (delivery,) = only(IncomingDelivery, peer.events)
    assert (delivery.oversize, delivery.payload, delivery.tag) == (True, b"", b"0")
    delivery.dispose(Rejected(error=Error(condition=Condition.MESSAGE_SIZE_EXCEEDED)).encode())
    (disposition,) = peer.answers()
    assert disposition.state.error.condition == Condition.MESSAGE_SIZE_EXCEEDED


@pytest.mark.parametrize("pieces", [[100], [60, 40]])
def test_a_message_of_exactly_the_limit_is_accepted(pieces: list[int]) -> None:
    peer, receiver = sending_peer()
    receiver.max_message_size = 100
    for number, size in enumerate(pieces):
        more = number < len(pieces) - 1
        peer.send(0, transfer(0 if number == 0 else None, more=more), bytes(size))
    (delivery,) = only(IncomingDelivery, peer.events)
    assert (delivery.oversize, delivery.payload) == (False, bytes(100))


def test_a_message_without_end_is_counted_and_not_kept() -> None:
    peer, receiver = sending_peer()
    receiver.max_message_size = 1000
    peer.send(0, transfer(0, more=True), bytes(900))
    for _ in range(50):
        peer.send(0, transfer(None, more=True), bytes(900))
    assert sum(map(len, receiver._parts)) == 0


def test_the_message_after_an_oversize_one_is_accepted() -> None:
    peer, receiver = sending_peer()
    receiver.max_message_size = 10
    peer.send(0, transfer(0, more=True), bytes(9))
    peer.send(0, transfer(None), bytes(9))
    (delivery,) = peer.send(0, transfer(1), b"fits")
    assert (delivery.oversize, delivery.payload) == (False, b"fits")


def test_a_peer_that_piles_up_unsettled_deliveries_loses_its_session() -> None:
    peer, receiver = sending_peer()
    held = receiver.session.incoming_unsettled
    held.update(dict.fromkeys(range(MAX_INCOMING_UNSETTLED), None))  # type: ignore[arg-type]
    (ended,) = peer.send(0, transfer(MAX_INCOMING_UNSETTLED), b"x" * 20)
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED


# --- settling ---


def test_first_mode_the_receiver_settles_at_once_and_the_sender_forgets() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    sent = send_one(sender, context="mine")
    pair.pump()
    pair.received()[0].dispose(ACCEPTED)
    pair.pump()
    (disposed,) = only(OutgoingDisposed, pair.client_events)
    assert (disposed.link, disposed.deliveries) == (sender, [sent])
    assert (disposed.state, disposed.settled) == (Accepted(), True)
    assert disposed.deliveries[0].context == "mine"
    assert (sender.unsettled, sender.session.outgoing_unsettled) == (0, {})
    assert receiver.session.incoming_unsettled == {}


def test_second_mode_the_sender_settles_after_the_receivers_state() -> None:
    pair = Pair.opened()
    receiver, sender = pair.receiving(snd_settle_mode=0, rcv_settle_mode=1)
    sent = send_one(sender)
    pair.pump()
    (received,) = only(IncomingDelivery, pair.client_events)
    received.dispose(ACCEPTED, settled=False)
    pair.pump()
    (asked,) = only(OutgoingDisposed, pair.server_events)
    assert (asked.deliveries, asked.settled) == ([sent], False)
    assert sender.unsettled == 1
    sent.settle(ACCEPTED)
    pair.pump()
    (confirmed,) = only(IncomingDisposed, pair.client_events)
    assert (confirmed.link, confirmed.deliveries) == (receiver, [received])
    assert (confirmed.state, confirmed.settled, received.settled) == (Accepted(), True, True)
    assert sender.unsettled == 0
    assert receiver.session.incoming_unsettled == {}


def test_a_pre_settled_delivery_leaves_nothing_behind_and_gets_no_answer() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    assert sender.send(TAG, (b"x",), settled=True) is None
    pair.pump()
    (received,) = pair.received()
    received.dispose(ACCEPTED)
    assert pair.server.take_output() == []
    assert sender.session.outgoing_unsettled == {}
    assert receiver.session.incoming_unsettled == {}


def test_a_delivery_is_settled_once() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    send_one(sender)
    pair.pump()
    (received,) = pair.received()
    received.dispose(ACCEPTED)
    received.dispose(RELEASED)
    pair.pump()
    assert [event.state for event in only(OutgoingDisposed, pair.client_events)] == [Accepted()]


@pytest.mark.parametrize(
    "state",
    [
        Accepted(),
        Released(),
        Rejected(error=Error(condition=Condition.DEAD_LETTER, description="", info={"DeadLetterReason": "why"})),
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"a": 1}),
        TransactionalState(txn_id=b"id", outcome=Accepted()),
    ],
)
def test_any_outcome_arrives_as_it_was_given(state: Any) -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    send_one(sender)
    pair.pump()
    pair.received()[0].dispose(state.encode())
    pair.pump()
    assert only(OutgoingDisposed, pair.client_events)[0].state == state


def test_forgetting_a_delivery_sends_nothing() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    sent = send_one(sender)
    pair.pump()
    sent.forget()
    sent.forget()
    sent.settle(ACCEPTED)
    assert sender.unsettled == 0
    assert pair.client.take_output() == []


# --- ranges ---


def test_neighbours_with_the_same_state_share_one_disposition() -> None:
    peer, _ = sending_peer()
    for number in range(10):
        peer.send(0, transfer(number), b"x" * 20)
    for delivery in only(IncomingDelivery, peer.events):
        delivery.dispose(ACCEPTED)
    assert peer.answers() == [Disposition(role=True, first=0, last=9, settled=True, state=Accepted())]


def test_a_flushed_disposition_precedes_later_frames_of_any_session() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    _, back = pair.receiving(name="back")  # in a session of its own
    assert back.session is not receiver.session
    for flushes in (False, True):
        sent = sender.send(TAG, (b"x",))
        pair.to_server()
        pair.client_events.clear()
        pair.received()[-1].dispose(ACCEPTED)
        if flushes:
            pair.server.flush_dispositions()
        back.send(TAG, (b"y",), settled=True)
        pair.to_client()
        heard = [type(event) for event in pair.client_events]
        expected = [IncomingDelivery, OutgoingDisposed]
        assert heard == (expected[::-1] if flushes else expected)
        assert sent is not None


def test_a_range_is_broken_by_another_state_a_gap_and_another_settled() -> None:
    peer, _ = sending_peer()
    for number in range(8):
        peer.send(0, transfer(number), b"x" * 20)
    deliveries = only(IncomingDelivery, peer.events)
    for number in (0, 1):
        deliveries[number].dispose(ACCEPTED)
    deliveries[2].dispose(RELEASED)
    deliveries[4].dispose(RELEASED)
    deliveries[5].dispose(RELEASED, settled=False)
    deliveries[6].dispose(RELEASED, settled=False)
    ranges = [(answer.first, answer.last, answer.settled, type(answer.state)) for answer in peer.answers()]
    assert ranges == [
        (0, 1, True, Accepted),
        (2, 2, True, Released),
        (4, 4, True, Released),
        (5, 6, False, Released),
    ]


def test_deliveries_in_sequence_answered_link_by_link_share_one_disposition() -> None:
    peer, _ = sending_peer()
    for number in range(9):
        peer.send(0, transfer(number), b"x" * 20)
    deliveries = only(IncomingDelivery, peer.events)
    for link in range(3):
        for delivery in deliveries[link::3]:
            delivery.dispose(ACCEPTED if delivery is not deliveries[7] else RELEASED)
    ranges = [(answer.first, answer.last, type(answer.state)) for answer in peer.answers()]
    assert ranges == [(0, 6, Accepted), (7, 7, Released), (8, 8, Accepted)]


def test_dispositions_of_one_delivery_keep_their_order() -> None:
    peer, _ = sending_peer()
    for number in range(3):
        peer.send(0, transfer(number), b"x" * 20)
    last, middle, first = reversed(only(IncomingDelivery, peer.events))
    last.dispose(ACCEPTED)
    middle.dispose(RELEASED, settled=False)
    middle.dispose(ACCEPTED)
    first.dispose(ACCEPTED)
    ranges = [(answer.first, answer.last, answer.settled, type(answer.state)) for answer in peer.answers()]
    assert ranges == [(0, 0, True, Accepted), (1, 1, False, Released), (1, 2, True, Accepted)]


def test_confirmations_of_a_sender_are_gathered_too() -> None:
    peer, sender = receiving_peer()
    sent = [send_one(sender) for _ in range(300)]
    peer.answers()
    for delivery in sent:
        delivery.settle(ACCEPTED)
    assert peer.answers() == [Disposition(role=False, first=0, last=299, settled=True, state=Accepted())]


def test_a_disposition_is_written_before_later_frames_of_its_session() -> None:
    peer, receiver = sending_peer()
    peer.send(0, transfer(0), b"x" * 20)
    only(IncomingDelivery, peer.events)[0].dispose(ACCEPTED)
    receiver.detach()
    assert [type(answer) for answer in peer.answers()] == [Disposition, Detach]


def test_dispositions_are_written_before_the_connection_closes() -> None:
    peer, _ = sending_peer()
    peer.send(0, transfer(0), b"x" * 20)
    only(IncomingDelivery, peer.events)[0].dispose(ACCEPTED)
    peer.engine.close()
    assert isinstance(peer.answers()[0], Disposition)


def test_a_range_settles_all_that_are_in_it_in_one_event() -> None:
    peer, sender = receiving_peer()
    sent = [send_one(sender) for _ in range(400)]
    (disposed,) = peer.send(0, Disposition(role=True, first=100, last=299, settled=True, state=Accepted()))
    assert disposed.deliveries == sent[100:300]
    assert sender.unsettled == 200
    assert list(sender.session.outgoing_unsettled) == [*range(100), *range(300, 400)]


def test_an_unsettled_range_leaves_the_deliveries_in_place() -> None:
    peer, sender = receiving_peer()
    sent = [send_one(sender) for _ in range(10)]
    (disposed,) = peer.send(0, Disposition(role=True, first=2, last=4, state=Accepted()))
    assert (disposed.deliveries, disposed.settled) == (sent[2:5], False)
    assert sender.unsettled == 10


def test_a_range_without_last_is_one_delivery() -> None:
    peer, sender = receiving_peer()
    sent = [send_one(sender) for _ in range(3)]
    (disposed,) = peer.send(0, Disposition(role=True, first=1, settled=True, state=Released()))
    assert disposed.deliveries == [sent[1]]


def test_a_range_over_several_links_gives_one_event_for_each() -> None:
    peer, first = receiving_peer()
    second = peer.attach(1, role=True, name="other")
    assert isinstance(second, Sender)
    peer.flow(handle=1, delivery_count=0, link_credit=10, incoming_window=1000)
    sent = [send_one(link) for link in (first, second, first, second)]
    events = peer.send(0, Disposition(role=True, first=0, last=3, settled=True, state=Accepted()))
    assert [(event.link, event.deliveries) for event in events] == [
        (first, [sent[0], sent[2]]),
        (second, [sent[1], sent[3]]),
    ]
    assert (first.unsettled, second.unsettled) == (0, 0)


class Counted(dict[int, Any]):
    """A dict that counts its lookups."""

    asked = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)

    def pop(self, key: int, *default: Any) -> Any:
        self.asked += 1
        return super().pop(key, *default)


@pytest.mark.parametrize("settled", [False, True])
def test_a_range_of_two_thousand_million_costs_only_the_unsettled_deliveries(settled: bool) -> None:
    peer, sender = receiving_peer()
    sent = [send_one(sender) for _ in range(5)]
    counted = sender.session.outgoing_unsettled = Counted(sender.session.outgoing_unsettled)
    disposition = Disposition(role=True, first=3, last=3 + 0x7FFFFFFF, settled=settled, state=Accepted())
    (disposed,) = peer.send(0, disposition)
    assert disposed.deliveries == sent[3:]
    assert counted.asked == 0


@pytest.mark.parametrize(("first", "last"), [(0, LAST_ID), (5, 4), (5, 0)])
def test_a_range_that_goes_backwards_settles_nothing_and_ends_the_session(first: int, last: int) -> None:
    peer, sender = receiving_peer()
    for _ in range(5):
        send_one(sender)
    (ended,) = peer.send(0, Disposition(role=True, first=first, last=last, settled=True, state=Accepted()))
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == Condition.INVALID_FIELD


def test_a_disposition_for_settled_or_unknown_deliveries_is_ignored() -> None:
    peer, sender = receiving_peer()
    send_one(sender)
    settle = Disposition(role=True, first=0, settled=True, state=Accepted())
    assert len(peer.send(0, settle)) == 1
    assert peer.send(0, settle) == []
    assert peer.send(0, Disposition(role=True, first=70, last=90, settled=True)) == []
    assert peer.send(0, Disposition(role=False, first=0, settled=True)) == []
    assert peer.engine.opened


def test_dispositions_for_a_detached_link_are_ignored() -> None:
    peer, sender = receiving_peer()
    send_one(sender)
    peer.send(0, Detach(handle=0, closed=True))
    peer.answers()
    assert peer.send(0, Disposition(role=True, first=0, settled=True, state=Accepted())) == []
    assert peer.engine.opened


def test_settling_a_delivery_of_a_detached_link_sends_nothing() -> None:
    peer, _ = sending_peer()
    peer.send(0, transfer(0), b"x" * 20)
    peer.send(0, transfer(1), b"x" * 20)
    first, second = only(IncomingDelivery, peer.events)
    peer.send(0, Detach(handle=0, closed=True))
    peer.answers()
    first.dispose(ACCEPTED)
    second.dispose(ACCEPTED, settled=False)
    assert peer.answers() == []


def test_the_deliveries_of_other_links_survive_a_detach() -> None:
    peer, first = receiving_peer()
    second = peer.attach(1, role=True, name="other")
    assert isinstance(second, Sender)
    peer.flow(handle=1, delivery_count=0, link_credit=10, incoming_window=1000)
    send_one(first)
    kept = send_one(second)
    peer.send(0, Detach(handle=0, closed=True))
    (disposed,) = peer.send(0, Disposition(role=True, first=0, last=1, settled=True, state=Accepted()))
    assert disposed.deliveries == [kept]


# --- serial numbers ---


def test_delivery_ids_and_transfer_ids_wrap_around() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=1000)
    near_the_end = LAST_ID - 2
    sender.session.next_delivery_id = near_the_end
    sender.session.next_outgoing_id = near_the_end
    receiver.session.next_incoming_id = near_the_end
    sent = [send_one(sender) for _ in range(6)]
    pair.pump()
    ids = [delivery.delivery_id for delivery in pair.received()]
    assert ids == [LAST_ID - 2, LAST_ID - 1, LAST_ID, 0, 1, 2]
    for delivery in pair.received():
        delivery.dispose(ACCEPTED)
    pair.pump()
    settled = [one for event in only(OutgoingDisposed, pair.client_events) for one in event.deliveries]
    assert settled == sent
    assert receiver.session.next_incoming_id == 3
    receiver.session.send_flow()
    pair.pump()
    assert sender.session.remote_incoming_window == 8192


def test_a_range_across_the_wrap_around_settles_both_sides_of_it() -> None:
    peer, sender = receiving_peer()
    sender.session.next_delivery_id = LAST_ID - 1
    sent = [send_one(sender) for _ in range(4)]
    (disposed,) = peer.send(0, Disposition(role=True, first=LAST_ID, last=0, settled=True, state=Accepted()))
    assert disposed.deliveries == sent[1:3]


def test_link_credit_survives_the_wrap_around_of_the_delivery_count() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=0)
    sender.delivery_count = receiver.delivery_count = LAST_ID - 1
    receiver.grant(10)
    pair.pump()
    for _ in range(5):
        send_one(sender)
    pair.pump()
    assert (sender.delivery_count, receiver.delivery_count) == (3, 3)
    receiver.grant(10)
    pair.pump()
    assert sender.credit == 10


def test_a_drain_survives_the_wrap_around_of_the_delivery_count() -> None:
    pair = Pair.opened()
    receiver, sender = pair.receiving(credit=0)
    sender.delivery_count = receiver.delivery_count = LAST_ID - 1
    receiver.grant(10, drain=True)
    pair.pump()
    sender.finish_drain()
    pair.pump()
    assert (receiver.delivery_count, receiver.credit) == (8, 0)


# --- messages that are not whole yet ---


def test_messages_that_are_not_whole_are_held_up_to_a_limit_for_all_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_PARTIAL_BYTES", 3 * (1000 + links.PART_BYTES))
    peer = Peer()
    peer.begin()
    for handle in range(4):
        peer.attach(handle, name=f"link-{handle}")
    for handle in range(3):
        assert peer.send(0, transfer(handle, handle=handle, more=True), bytes(1000)) == []
    (detached,) = peer.send(0, transfer(3, handle=3, more=True), bytes(1000))
    assert isinstance(detached, LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    (whole,) = peer.send(0, transfer(None, handle=0, more=False), b"")
    assert len(whole.payload) == 1000


class Memory:
    """The memory of all connections, as their owner counts it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def has_room(self) -> bool:
        return self.used < self.limit

    def take(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size


def test_incomplete_messages_are_limited_by_the_memory_of_all_connections() -> None:
    memory = Memory(1500)
    peers = [Peer(), Peer()]
    for peer in peers:
        peer.engine.partial_memory = memory
        peer.begin()
        peer.attach(0)
        peer.attach(1, name="second")
    first, second = peers
    assert first.send(0, transfer(0, more=True), bytes(1000)) == []
    assert second.send(0, transfer(0, more=True), bytes(1000)) == []  # there was room before
    (detached,) = second.send(0, transfer(1, handle=1, more=True), bytes(10))
    assert isinstance(detached, LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    (whole,) = first.send(0, transfer(None, more=False), b"")
    assert len(whole.payload) == 1000
    assert memory.used == 1000 + links.PART_BYTES


@pytest.mark.parametrize("end", ["whole", "aborted", "detached", "ended", "closed", "lost"])
def test_a_message_that_is_not_whole_costs_nothing_after_its_end(end: str) -> None:
    peer = Peer()
    memory = peer.engine.partial_memory = Memory(1 << 20)
    session = peer.begin()
    link = peer.attach(0)
    peer.send(0, transfer(0, more=True), bytes(1000))
    assert memory.used == peer.engine.partial_bytes > 1000
    match end:
        case "whole":
            peer.send(0, transfer(None, more=False), b"")
        case "aborted":
            peer.send(0, transfer(None, more=False, aborted=True), b"")
        case "detached":
            link.detach()
        case "ended":
            session.end()
        case "closed":
            peer.engine.close()
        case "lost":
            peer.engine.lost()
    assert memory.used == peer.engine.partial_bytes == 0


def test_frames_without_payload_are_not_kept() -> None:
    peer = Peer()
    peer.begin()
    peer.attach(0)
    peer.send(0, transfer(0, more=True), b"a")
    held = peer.engine.partial_bytes
    for _ in range(10):
        peer.send(0, transfer(None, more=True), b"")
    assert peer.engine.partial_bytes == held
    (delivery,) = peer.send(0, transfer(None, more=False), b"b")
    assert delivery.payload == b"ab"


def test_a_connection_without_transport_holds_and_sends_nothing() -> None:
    peer = Peer()
    session = peer.begin()
    link = peer.attach(0)
    peer.send(0, transfer(0))
    peer.raw(b"\x00\x00\x10\x00\x02")
    peer.engine.lost()
    assert peer.engine.ended
    assert not link.attached
    assert not session.incoming_unsettled
    assert peer.engine.take_output() == []
    assert peer.engine.receive(b"\x00" * 8) == []

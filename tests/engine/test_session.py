"""Begin and end, windows, handles."""

from __future__ import annotations

from typing import Any

import pytest

from engine.pair import Pair, Peer, attach, only
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import encode_frame
from peeklock.amqp.performatives import Attach, Begin, Detach, End, Error, Flow, Transfer
from peeklock.engine.errors import EndSession
from peeklock.engine.events import LinkAttached, SessionBegun, SessionEnded, WindowOpened
from peeklock.engine.links import Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.engine.session import INCOMING_WINDOW
from peeklock.engine.states import LinkState, SessionState
from peeklock.limits.amqp import HANDLE_MAX


def error_of(events: list[Any]) -> str:
    (ended,) = only(SessionEnded, events)
    assert ended.error is not None
    return ended.error.condition


# --- begin and end ---


def test_a_begin_is_answered_with_the_peers_channel_and_wide_windows() -> None:
    peer = Peer()
    peer.answers()
    peer.begin(7)
    ((channel, begin, _),) = peer.frames()
    assert (channel, begin.remote_channel) == (0, 7)
    assert begin.incoming_window >= 5000
    assert begin.outgoing_window >= 5000
    assert begin.handle_max >= 255


def test_both_sides_map_the_session() -> None:
    pair = Pair.opened()
    ours, theirs = pair.sessions()
    assert ours.state is theirs.state is SessionState.MAPPED
    assert [event.session for event in only(SessionBegun, pair.client_events)] == [ours]


def test_an_end_from_the_client_is_answered() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    sender.session.end(Error(condition=Condition.INTERNAL_ERROR, description="done"))
    pair.pump()
    assert sender.session.state is receiver.session.state is SessionState.UNMAPPED
    (ended,) = only(SessionEnded, pair.server_events)
    assert ended.session is receiver.session
    assert ended.error == Error(condition=Condition.INTERNAL_ERROR, description="done")
    assert only(SessionEnded, pair.client_events) == []


def test_the_links_of_an_ended_session_can_still_be_listed_and_are_detached() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    sender.session.end()
    pair.pump()
    assert list(receiver.session.links) == [receiver]
    assert receiver.state is LinkState.DETACHED
    assert sender.state is LinkState.DETACHED


def test_an_end_from_the_server_is_answered() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    receiver.session.end()
    pair.pump()
    assert sender.session.state is receiver.session.state is SessionState.UNMAPPED
    assert only(SessionEnded, pair.client_events)
    assert pair.client.opened


def test_ending_twice_sends_one_end() -> None:
    peer = Peer()
    session = peer.begin()
    peer.answers()
    session.end()
    session.end()
    assert peer.answers() == [End()]


def test_frames_after_our_end_are_ignored_until_the_answer() -> None:
    peer = Peer()
    session = peer.begin()
    peer.attach()
    session.end()
    peer.answers()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False)
    assert peer.send(0, transfer, b"x" * 40) == []
    assert peer.attach_only(1, name="other") == []
    assert peer.flow(echo=True) == []
    assert peer.send(0, Detach(handle=0)) == []
    assert peer.answers() == []
    assert peer.send(0, End()) == []
    assert session.state is SessionState.UNMAPPED
    assert peer.begin(0) is not session


def test_a_session_that_broke_a_rule_is_reported_once() -> None:
    peer = Peer()
    peer.begin()
    peer.answers()
    peer.flow(handle=3, link_credit=1)
    (end,) = peer.answers()
    assert end.error.condition == Condition.UNATTACHED_HANDLE
    peer.send(0, End())
    assert error_of(peer.events) == Condition.UNATTACHED_HANDLE


def test_a_client_may_end_a_session_before_its_begin_is_answered() -> None:
    pair = Pair.opened()
    session = pair.client.begin()
    session.end()
    pair.pump()
    assert session.state is SessionState.UNMAPPED
    assert only(SessionBegun, pair.client_events) == []


# --- windows ---


def test_transfers_beyond_the_peers_window_are_held_in_order_and_go_out_when_it_opens() -> None:
    peer = Peer()
    peer.begin(incoming_window=2)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=10, incoming_window=2)
    peer.answers()
    for number in range(5):
        sender.send(b"%d" % number, [b"m%d" % number])
    assert [payload for _, _, payload in peer.frames()] == [b"m0", b"m1"]
    peer.flow(next_incoming_id=2, incoming_window=2)
    assert [payload for _, _, payload in peer.frames()] == [b"m2", b"m3"]
    peer.flow(next_incoming_id=4, incoming_window=2)
    assert [payload for _, _, payload in peer.frames()] == [b"m4"]


def test_a_sender_is_not_ready_while_the_window_is_shut_and_the_owner_hears_when_it_opens() -> None:
    peer = Peer()
    session = peer.begin(incoming_window=1)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=10, incoming_window=1)
    assert sender.ready()
    sender.send(b"t", [b"x"])
    assert not sender.ready()
    events = peer.flow(next_incoming_id=1, incoming_window=1)
    assert [event.session for event in only(WindowOpened, events)] == [session]
    assert sender.ready()


def test_transfers_in_flight_count_against_the_window() -> None:
    peer = Peer()
    session = peer.begin(incoming_window=10)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=10, incoming_window=10)
    for _ in range(4):
        sender.send(b"t", [b"x"])
    peer.flow(next_incoming_id=1, incoming_window=10)
    assert session.remote_incoming_window == 7


def test_the_session_window_is_renewed_when_half_of_it_is_used() -> None:
    peer = Peer()
    peer.begin(next_outgoing_id=5)
    peer.attach()
    peer.answers()
    transfer = Transfer(handle=0, delivery_tag=b"t", message_format=0, settled=True)
    for number in range(INCOMING_WINDOW // 2 - 1):
        transfer.delivery_id = number
        peer.send(0, transfer, b"x")
    assert peer.answers() == []
    transfer.delivery_id = INCOMING_WINDOW
    peer.send(0, transfer, b"x")
    (flow,) = peer.answers()
    assert flow.next_incoming_id == 5 + INCOMING_WINDOW // 2
    assert flow.incoming_window == INCOMING_WINDOW
    assert flow.handle is None


def test_a_long_stream_never_stalls() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=100_000)
    for number in range(3 * INCOMING_WINDOW):
        assert sender.ready()
        sender.send(b"t", [b"x"], settled=True)
        if number % 500 == 0:
            pair.pump()
    pair.pump()
    assert len(pair.received()) == 3 * INCOMING_WINDOW
    assert receiver.credit == 100_000 - 3 * INCOMING_WINDOW


def test_a_peer_that_counts_deliveries_and_not_frames_is_taken_at_its_word() -> None:
    peer = Peer()
    peer.begin()
    peer.attach()
    for more in (True, True, False):
        peer.send(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=more), b"x")
    peer.answers()
    peer.flow(next_outgoing_id=1, echo=True)
    (flow,) = peer.answers()
    assert flow.next_incoming_id == 1


def test_a_flow_before_the_peers_begin_has_no_next_incoming_id() -> None:
    peer = Peer(is_server=False)
    session = peer.engine.begin()
    receiver = session.receiver("r")
    receiver.attach(attach(receiver))
    receiver.grant(3)
    flow = peer.answers()[-1]
    assert isinstance(flow, Flow)
    assert flow.next_incoming_id is None
    assert flow.link_credit == 3


def test_a_flow_with_echo_is_answered_with_the_sessions_state() -> None:
    peer = Peer()
    peer.begin(next_outgoing_id=9)
    peer.answers()
    peer.flow(next_outgoing_id=9, echo=True)
    (flow,) = peer.answers()
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle, flow.echo) == (9, INCOMING_WINDOW, None, False)


def test_held_transfers_of_a_detached_link_are_dropped() -> None:
    peer = Peer()
    peer.begin(incoming_window=1)
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=10, incoming_window=1)
    sender.send(b"a", [b"first"])
    sender.send(b"b", [b"held"])
    peer.answers()
    sender.detach()
    peer.flow(next_incoming_id=1, incoming_window=10)
    assert [type(answer) for answer in peer.answers()] == [Detach]


def test_no_transfer_is_ready_while_the_transport_is_congested() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    pair.client.congested = True
    assert not sender.ready()
    pair.client.congested = False
    assert sender.ready()


# --- handles ---


def test_a_second_attach_on_the_same_handle_ends_the_session() -> None:
    peer = Peer()
    peer.begin()
    peer.attach(4)
    peer.attach_only(4, name="another")
    assert error_of(peer.events) == Condition.HANDLE_IN_USE
    assert isinstance(peer.answers()[-1], End)
    assert peer.engine.opened


@pytest.mark.parametrize(
    "performative",
    [
        Transfer(handle=9, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False),
        Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=9),
        Detach(handle=9),
    ],
)
def test_an_unknown_handle_ends_the_session(performative: Any) -> None:
    peer = Peer()
    peer.begin()
    peer.send(0, performative)
    assert error_of(peer.events) == Condition.UNATTACHED_HANDLE
    assert peer.engine.opened


def test_a_handle_above_handle_max_ends_the_session() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only(HANDLE_MAX + 1)
    assert error_of(peer.events) == Condition.RESOURCE_LIMIT_EXCEEDED


def test_we_attach_no_more_links_than_the_peer_allows() -> None:
    peer = Peer(is_server=False)
    session = peer.engine.begin()
    peer.send(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1, handle_max=1))
    session.sender("a")
    session.receiver("b")
    with pytest.raises(EndSession, match="all 2 handles"):
        session.sender("c")


def test_more_links_than_the_peer_has_handles_for_end_the_session() -> None:
    peer = Peer()
    peer.begin(handle_max=0)
    peer.attach(0)
    peer.attach_only(1, name="another")
    assert error_of(peer.events) == Condition.RESOURCE_LIMIT_EXCEEDED


def test_a_handle_is_used_again_after_a_detach_on_both_sides() -> None:
    pair = Pair.opened()
    session, _ = pair.sessions()
    for round_ in range(3):
        sender, receiver = pair.sending(session, name=f"link-{round_}")
        assert (sender.handle, receiver.handle) == (0, 0)
        sender.send(b"t", [b"%d" % round_], settled=True)
        sender.detach()
        pair.pump()
    assert [delivery.payload for delivery in pair.received()] == [b"0", b"1", b"2"]


def test_the_lowest_free_handle_is_used() -> None:
    pair = Pair.opened()
    session, _ = pair.sessions()
    links = [pair.sending(session, name=str(number))[0] for number in range(4)]
    links[2].detach()
    links[1].detach()
    pair.pump()
    assert session.sender("x").handle == 1
    assert session.sender("y").handle == 2
    assert session.sender("z").handle == 4


def test_handles_of_the_two_sides_need_not_agree() -> None:
    peer = Peer()
    peer.begin()
    first = peer.attach(40, name="a")
    second = peer.attach(30, name="b")
    assert isinstance(second, Receiver)
    transfer = Transfer(handle=30, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False)
    (delivery,) = peer.send(0, transfer, b"x" * 20)
    assert delivery.link is second
    assert (first.handle, second.handle) == (0, 1)


def test_the_same_name_may_be_used_in_both_directions() -> None:
    peer = Peer(is_server=False)
    session = peer.engine.begin()
    peer.send(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=9, outgoing_window=9))
    sender, receiver = session.sender("$cbs"), session.receiver("$cbs")
    sender.attach(attach(sender))
    receiver.attach(attach(receiver))
    peer.send(0, Attach(name="$cbs", handle=0, role=False, initial_delivery_count=0))
    assert receiver.attached
    assert not sender.attached
    peer.send(0, Attach(name="$cbs", handle=1, role=True))
    assert sender.attached
    assert [event.link for event in only(LinkAttached, peer.events)] == [receiver, sender]


def test_a_small_channel_max_does_not_limit_links() -> None:
    pair = Pair.opened(Settings(container_id="c", channel_max=0), Settings(container_id="s", channel_max=0))
    session, _ = pair.sessions()
    for number in range(300):
        pair.sending(session, name=str(number), credit=0)
    assert len(list(session.links)) == 300


def test_a_detach_that_comes_after_the_end_of_its_session_is_ignored() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending()
    channel = sender.session.channel
    sender.session.end()
    pair.pump()
    pair.client.out.append(encode_frame(channel, Detach(handle=0, closed=True).encode()))
    pair.pump()
    assert pair.server.opened
    pair.client.begin()
    pair.pump()
    assert len(only(SessionBegun, pair.server_events)) == 2

"""Attach, refuse, detach, credit, drain, echo."""

from __future__ import annotations

from typing import Any

import pytest

from engine.pair import Pair, Peer, attach, only
from peeklock.amqp.errors import Condition
from peeklock.amqp.performatives import (
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Source,
    Target,
    Transfer,
)
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import CreditChanged, LinkAttached, LinkDetached, SessionEnded
from peeklock.engine.links import Receiver, Sender
from peeklock.engine.states import LinkState
from peeklock.limits.amqp import MAX_UNSETTLED

NOT_FOUND = Error(condition=Condition.NOT_FOUND, description="no such queue")


# --- attach ---


def test_an_accepted_attach_echoes_termini_and_settle_modes_exactly() -> None:
    peer = Peer()
    peer.begin()
    asked = Attach(
        name="l",
        handle=3,
        role=True,
        snd_settle_mode=0,
        rcv_settle_mode=1,
        source=Source(address="queue", filter={"com.microsoft:session-filter": None}),
        target=Target(address="here"),
    )
    peer.send(0, asked)
    (event,) = only(LinkAttached, peer.events)
    peer.answers()
    event.link.accept(max_message_size=1000, properties={"a": 1})
    (answer,) = peer.answers()
    assert (answer.name, answer.role) == ("l", False)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (0, 1)
    assert (answer.source, answer.target) == (asked.source, asked.target)
    assert answer.initial_delivery_count == 0
    assert answer.max_message_size == 1000
    assert answer.properties == {"a": 1}


def test_an_answer_has_properties_even_when_there_are_none() -> None:
    peer = Peer()
    peer.begin()
    peer.attach()
    attach_answers = [answer for answer in peer.answers() if isinstance(answer, Attach)]
    assert attach_answers[0].properties == {}
    assert attach_answers[0].initial_delivery_count is None


def test_accept_may_answer_with_other_termini() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only()
    link = only(LinkAttached, peer.events)[0].link
    link.accept(source=Source(address="other"))
    answer = peer.answers()[-1]
    assert answer.source.address == "other"
    assert answer.target.address == "queue"


def test_a_coordinator_is_a_target_too() -> None:
    peer = Peer()
    peer.begin()
    peer.send(0, Attach(name="t", handle=0, role=False, target=Coordinator(), initial_delivery_count=0))
    (event,) = only(LinkAttached, peer.events)
    assert isinstance(event.link.remote.target, Coordinator)


def test_a_refused_attach_is_answered_with_null_termini_and_a_closing_detach() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only()
    link = only(LinkAttached, peer.events)[0].link
    peer.answers()
    link.refuse(NOT_FOUND)
    answer, detach = peer.answers()
    assert isinstance(answer, Attach)
    assert (answer.source, answer.target) == (None, None)
    assert detach == Detach(handle=0, closed=True, error=NOT_FOUND)
    assert peer.send(0, Detach(handle=0, closed=True)) == []
    assert link.state is LinkState.DETACHED


def test_the_client_sees_a_refusal_as_attached_with_nothing_and_then_detached() -> None:
    pair = Pair.opened()
    session, _ = pair.sessions()
    sender = session.sender("l")
    sender.attach(attach(sender))
    pair.pump()
    only(LinkAttached, pair.server_events)[0].link.refuse(NOT_FOUND)
    pair.pump()
    attached, detached = pair.client_events[-2:]
    assert isinstance(attached, LinkAttached)
    assert isinstance(detached, LinkDetached)
    assert detached.link is sender
    assert detached.error == NOT_FOUND
    assert sender.remote is not None
    assert sender.remote.target is None
    assert sender.state is LinkState.DETACHED
    assert list(session.links) == []


def test_frames_pipelined_behind_a_refused_attach_are_passed_over() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only()
    only(LinkAttached, peer.events)[0].link.refuse(NOT_FOUND)
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False)
    assert peer.send(0, transfer, b"x" * 20) == []
    assert peer.flow(handle=0, delivery_count=0, link_credit=1) == []
    assert peer.engine.opened
    assert only(SessionEnded, peer.events) == []


def test_the_owner_may_take_its_time_to_accept() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only(role=True)
    peer.flow(handle=0, delivery_count=0, link_credit=5)
    link = only(LinkAttached, peer.events)[0].link
    assert isinstance(link, Sender)
    assert not link.ready()
    link.accept()
    assert link.ready()
    assert link.credit == 5


def test_a_client_that_gives_up_waiting_gets_attach_and_detach() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only(role=True)
    link = only(LinkAttached, peer.events)[0].link
    peer.answers()
    (detached,) = peer.send(0, Detach(handle=0, closed=True))
    assert isinstance(detached, LinkDetached)
    assert [type(answer) for answer in peer.answers()] == [Attach, Detach]
    link.accept()
    link.refuse(NOT_FOUND)
    assert peer.answers() == []


def test_a_transfer_before_the_link_was_accepted_never_becomes_a_delivery() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False)
    events = peer.send(0, transfer, b"x" * 20)
    assert [type(event) for event in events] == [LinkDetached]
    assert events[0].error.condition == Condition.TRANSFER_LIMIT_EXCEEDED
    link = only(LinkAttached, peer.events)[0].link
    peer.answers()
    link.accept()
    assert peer.answers() == []


@pytest.mark.parametrize(
    "fields", [{"unsettled": {b"tag": None}}, {"incomplete_unsettled": True}], ids=["unsettled", "incomplete"]
)
def test_resuming_a_link_is_refused_without_an_event(fields: dict[str, Any]) -> None:
    peer = Peer()
    peer.begin()
    peer.answers()
    assert peer.attach_only(**fields) == []
    answer, detach = peer.answers()
    assert (answer.source, answer.target) == (None, None)
    assert detach.error.condition == Condition.NOT_IMPLEMENTED
    assert detach.closed


# --- detach ---


def test_a_detach_from_the_client_is_answered() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    sender.detach()
    pair.pump()
    assert sender.state is receiver.state is LinkState.DETACHED
    (detached,) = only(LinkDetached, pair.server_events)
    assert (detached.link, detached.error) == (receiver, None)
    assert only(LinkDetached, pair.client_events) == []


def test_a_detach_from_the_server_carries_its_error() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    receiver.detach(NOT_FOUND)
    pair.pump()
    (detached,) = only(LinkDetached, pair.client_events)
    assert (detached.link, detached.error) == (sender, NOT_FOUND)
    assert sender.state is receiver.state is LinkState.DETACHED
    assert not sender.ready()


def test_both_sides_may_detach_at_once() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending()
    sender.detach()
    receiver.detach()
    pair.pump()
    assert sender.state is receiver.state is LinkState.DETACHED
    assert pair.server.opened


def test_a_detach_that_only_suspends_is_answered_with_closing() -> None:
    peer = Peer()
    peer.begin()
    peer.attach()
    peer.answers()
    peer.send(0, Detach(handle=0, closed=False))
    assert peer.answers() == [Detach(handle=0, closed=True)]


def test_detaching_twice_sends_one_detach() -> None:
    peer = Peer()
    peer.begin()
    link = peer.attach()
    peer.answers()
    link.detach()
    link.detach(NOT_FOUND)
    assert len(peer.answers()) == 1


def test_a_client_may_detach_before_its_attach_is_answered() -> None:
    pair = Pair.opened()
    session, _ = pair.sessions()
    sender = session.sender("l")
    sender.attach(attach(sender))
    sender.detach()
    pair.pump()
    assert sender.state is LinkState.DETACHED
    assert only(LinkAttached, pair.client_events) == []
    assert list(session.links) == []


def test_detaching_a_link_that_was_never_accepted_refuses_it() -> None:
    peer = Peer()
    peer.begin()
    peer.attach_only()
    peer.answers()
    only(LinkAttached, peer.events)[0].link.detach()
    answer, detach = peer.answers()
    assert answer.target is None
    assert detach.error.condition == Condition.INTERNAL_ERROR


# --- credit ---


def test_credit_arrives_at_the_sender_and_is_spent_by_sending() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=2)
    assert sender.credit == 2
    sender.send(b"a", [b"x"])
    assert (sender.credit, sender.ready()) == (1, True)
    sender.send(b"b", [b"x"])
    assert (sender.credit, sender.ready()) == (0, False)
    pair.pump()
    assert receiver.credit == 0
    receiver.grant(5)
    pair.pump()
    assert sender.credit == 5
    assert [event.link for event in only(CreditChanged, pair.client_events)] == [sender, sender]


def test_deliveries_since_the_flow_use_up_credit() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=10)
    for _ in range(4):
        sender.send(b"t", [b"x"])
    receiver.grant(10)  # does not know of the four yet
    pair.to_client()
    assert sender.credit == 6
    pair.pump()
    assert receiver.credit == 6


def test_a_receiver_that_has_counted_further_than_we_sent_gets_no_more_than_it_says() -> None:
    peer = Peer()
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=7, link_credit=3)
    assert sender.credit == 3


def test_a_flow_without_credit_changes_none() -> None:
    peer = Peer()
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=3)
    peer.flow(handle=0)
    assert sender.credit == 3


def test_credit_can_be_withdrawn() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=10)
    receiver.grant(0)
    pair.pump()
    assert sender.credit == 0
    assert not sender.ready()


def test_credit_given_without_a_delivery_count_counts_from_the_start() -> None:
    peer = Peer()
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=5)
    sender.send(b"t", [b"x"])
    peer.flow(handle=0, link_credit=5)
    assert sender.credit == 4


def test_a_sender_with_too_many_unsettled_deliveries_is_not_ready() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending(credit=10)
    sender.unsettled = MAX_UNSETTLED
    assert not sender.ready()


def test_a_peer_that_sends_beyond_its_credit_is_not_punished() -> None:
    peer = Peer()
    peer.begin()
    receiver = peer.attach()
    assert isinstance(receiver, Receiver)
    receiver.grant(1)
    for number in range(3):
        transfer = Transfer(handle=0, delivery_id=number, delivery_tag=b"t", message_format=0, settled=False)
        peer.send(0, transfer, b"x" * 20)
    assert len(only(IncomingDelivery, peer.events)) == 3
    assert receiver.credit == -2
    receiver.session.send_flow(receiver)
    assert peer.answers()[-1].link_credit == 0


def test_the_initial_delivery_count_of_the_sender_is_where_counting_starts() -> None:
    peer = Peer()
    peer.begin()
    peer.send(0, Attach(name="l", handle=0, role=False, initial_delivery_count=77))
    link = only(LinkAttached, peer.events)[0].link
    link.accept()
    link.grant(3)
    assert peer.answers()[-1].delivery_count == 77


# --- drain and echo ---


def test_a_drained_sender_uses_up_its_credit_and_sends_a_flow() -> None:
    pair = Pair.opened()
    receiver, sender = pair.receiving(credit=10)
    sender.send(b"t", [b"x"])
    receiver.grant(10, drain=True)
    pair.pump()
    assert sender.drain
    assert only(CreditChanged, pair.server_events)[-1].link is sender
    sender.finish_drain()
    pair.pump()
    assert (sender.credit, receiver.credit) == (0, 0)
    assert sender.delivery_count == receiver.delivery_count == 10
    assert not receiver.drain


def test_the_answer_to_a_drain_has_drain_set_and_no_echo() -> None:
    peer = Peer()
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.flow(handle=0, delivery_count=0, link_credit=5, drain=True)
    peer.answers()
    sender.finish_drain()
    (flow,) = peer.answers()
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 5, 0)
    assert (flow.drain, flow.echo) == (True, False)


def test_a_drain_ends_when_the_sender_uses_all_its_credit() -> None:
    pair = Pair.opened()
    receiver, sender = pair.receiving(credit=0)
    receiver.grant(2, drain=True)
    pair.pump()
    sender.send(b"a", [b"x"])
    sender.send(b"b", [b"x"])
    sender.finish_drain()
    pair.pump()
    assert (receiver.credit, receiver.drain) == (0, False)
    assert receiver.delivery_count == 2


def test_new_credit_after_a_drain_works_as_before() -> None:
    pair = Pair.opened()
    receiver, sender = pair.receiving(credit=10)
    receiver.grant(10, drain=True)
    pair.pump()
    sender.finish_drain()
    pair.pump()
    receiver.grant(4)
    pair.pump()
    assert (sender.credit, sender.drain) == (4, False)


def test_an_echo_for_a_receiver_that_drains_does_not_call_the_drain_off() -> None:
    peer = Peer()
    peer.begin()
    receiver = peer.attach()
    assert isinstance(receiver, Receiver)
    receiver.grant(5, drain=True)
    peer.answers()
    peer.flow(handle=0, delivery_count=0, echo=True)
    (flow,) = peer.answers()
    assert (flow.handle, flow.link_credit, flow.drain) == (0, 5, True)


def test_a_flow_of_a_sender_that_does_not_drain_leaves_our_count_alone() -> None:
    peer = Peer()
    peer.begin()
    receiver = peer.attach()
    assert isinstance(receiver, Receiver)
    peer.flow(handle=0, delivery_count=50, link_credit=10_000, available=3)
    assert (receiver.delivery_count, receiver.credit) == (0, 100)


def test_an_echo_on_a_link_gets_that_links_state() -> None:
    peer = Peer()
    peer.begin()
    sender = peer.attach(role=True)
    assert isinstance(sender, Sender)
    peer.answers()
    peer.flow(handle=0, delivery_count=0, link_credit=5, echo=True)
    (flow,) = peer.answers()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (sender.handle, 0, 5)
    assert flow.next_incoming_id == 0


def test_we_may_ask_for_an_echo() -> None:
    pair = Pair.opened()
    sender, receiver = pair.sending(credit=0)
    receiver.grant(3, echo=True)
    pair.to_client()
    answer = b"".join(pair.client.take_output())
    assert answer
    assert sender.credit == 3


def test_granting_credit_on_a_detached_link_sends_nothing() -> None:
    peer = Peer()
    peer.begin()
    receiver = peer.attach()
    assert isinstance(receiver, Receiver)
    receiver.detach()
    peer.answers()
    receiver.grant(10)
    assert peer.answers() == []


def test_a_link_keeps_what_its_owner_hangs_on_it() -> None:
    pair = Pair.opened()
    _, receiver = pair.sending()
    receiver.node = marker = object()
    assert next(iter(receiver.session.links)).node is marker


def test_max_message_size_of_the_receiver_is_known_to_the_sender() -> None:
    pair = Pair.opened()
    sender, _ = pair.sending(max_message_size=4096)
    assert sender.max_message_size == 4096
    other, _ = pair.sending(sender.session, name="other")
    assert other.max_message_size == 0

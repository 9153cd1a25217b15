"""The wire protocol: frames that no SDK sends, and fields that no SDK returns, with a running broker."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from raw_peer import TAG, RawPeer, sas_token

from peeklock.amqp.frames import AMQP_HEADER, SASL_HEADER
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    Released,
    SaslMechanisms,
    Source,
    Target,
    Transfer,
)
from peeklock.amqp.types import Array, Int, Symbol, Timestamp, ULong
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, StartBroker

BATCH_FORMAT = 0x80013700
MESSAGE = Message(properties=Properties(message_id="m"), data=[b"body"]).encode()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000), data=None)


@pytest.fixture
def peer(broker: BrokerThread) -> Iterator[RawPeer]:
    """Connected, nothing said yet."""
    with RawPeer(broker) as peer:
        yield peer


@pytest.fixture
def root(peer: RawPeer) -> RawPeer:
    """A connection with all rights."""
    return peer.open_as_root()


def seconds(broker: BrokerThread, offset: int) -> int:
    """Unix seconds by the broker's clock, for tokens."""
    return broker.clock() // 1000 + offset


# --- headers and SASL ---


def test_an_amqp_header_without_sasl_is_accepted(peer: RawPeer) -> None:
    answer = peer.open()
    assert answer.max_frame_size >= 65536
    assert answer.channel_max >= 255
    assert answer.idle_time_out is not None
    assert 120_000 <= answer.idle_time_out <= 240_000


@pytest.mark.parametrize("garbage", [b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"MQTT\x04\x02\x00\x3c"])
def test_any_other_header_is_answered_with_the_brokers_and_the_connection_is_closed(
    peer: RawPeer, garbage: bytes
) -> None:
    peer.write(garbage)
    assert peer.read(8) == AMQP_HEADER
    assert peer.is_hung_up()


def test_mechanisms_are_an_array_of_symbols(peer: RawPeer) -> None:
    peer.write(SASL_HEADER)
    assert peer.read(8) == SASL_HEADER
    frame = peer.next_frame()
    assert isinstance(frame.performative, SaslMechanisms)
    (offered,) = frame.fields
    assert isinstance(offered, Array)
    assert offered.element is Symbol
    assert {"MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"} <= set(offered)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("ANONYMOUS", b""), ("ANONYMOUS", b"\0RootManageSharedAccessKey"), ("MSSBCBS", b"")],
)
def test_the_mechanisms_of_the_sdks_accept_every_client(peer: RawPeer, mechanism: str, response: bytes) -> None:
    assert peer.login(mechanism, response).code == 0
    peer.open()


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0RootManageSharedAccessKey\0guessed"),
        ("PLAIN", b"\0nobody\0SAS_KEY_VALUE"),
        ("PLAIN", b"no zeros"),
        ("PLAIN", b"\0\xff\0\xff"),
        ("EXTERNAL", b""),
    ],
)
def test_invalid_sasl_is_refused_and_the_connection_is_closed(peer: RawPeer, mechanism: str, response: bytes) -> None:
    assert peer.login(mechanism, response).code == 1
    assert peer.is_hung_up()


def test_everything_may_be_pipelined(peer: RawPeer) -> None:
    """As pyamqp does: header, open, begin and the links of `$cbs` without waiting for an answer."""
    peer.write(AMQP_HEADER)
    peer.send(Open(container_id="raw", hostname="anything"))
    peer.send(Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000))
    for handle, role in ((0, False), (1, True)):
        terminus: dict[str, Any] = {"source": Source(address="$cbs"), "target": Target(address="$cbs")}
        peer.send(Attach(name=f"cbs-{handle}", handle=handle, role=role, initial_delivery_count=0, **terminus))
    assert peer.read(8) == AMQP_HEADER
    peer.expect(Open)
    peer.expect(Begin)
    assert peer.expect(Attach).name == "cbs-0"
    credit = peer.expect(Flow)
    assert credit.next_incoming_id is not None
    assert credit.link_credit is not None
    assert credit.link_credit >= 100
    assert peer.expect(Attach).name == "cbs-1"


# --- answers ---


def test_open_begin_and_attach_answers_have_all_their_fields(peer: RawPeer) -> None:
    peer.login("PLAIN", b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE")
    peer.write(AMQP_HEADER)
    peer.send(Open(container_id="raw"))
    peer.send(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
    assert peer.read(8) == AMQP_HEADER
    assert len(peer.next_frame().fields) == 10
    begin = peer.next_frame()
    assert len(begin.fields) == 8
    assert begin.performative.remote_channel == 0
    assert begin.performative.incoming_window >= 2048
    assert begin.performative.outgoing_window >= 2048
    assert begin.performative.handle_max >= 255
    sending = peer.attach(0, sends_to="queue")
    assert len(sending.fields) == 14
    assert sending.performative.max_message_size == 262144
    assert sending.performative.properties == {"com.microsoft:max-message-batch-size": 262144}
    assert len(peer.next_frame().fields) == 11  # the flow
    receiving = peer.attach(1, receives_from="queue")
    assert len(receiving.fields) == 14
    assert receiving.performative.initial_delivery_count == 0
    assert receiving.performative.properties == {}


@pytest.mark.parametrize(("snd_settle_mode", "rcv_settle_mode"), [(0, 0), (0, 1), (1, 0), (2, 1)])
def test_settle_modes_and_termini_are_echoed(root: RawPeer, snd_settle_mode: int, rcv_settle_mode: int) -> None:
    address = "amqps://localhost:5672/QUEUE"
    answer: Attach = root.attach(
        0,
        receives_from=address,
        reply_to="me",
        snd_settle_mode=snd_settle_mode,
        rcv_settle_mode=rcv_settle_mode,
        properties={Symbol("com.microsoft:receiver-name"): "r", Symbol("unknown"): 1},
    ).performative
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (snd_settle_mode, rcv_settle_mode)
    assert answer.source is not None
    assert answer.source.address == address
    assert isinstance(answer.target, Target)
    assert answer.target.address == "me"
    assert answer.role is False


@pytest.mark.parametrize("direction", ["receives_from", "sends_to"])
def test_an_attach_without_a_put_token_is_refused(peer: RawPeer, direction: str) -> None:
    peer.login("ANONYMOUS")
    peer.open()
    answer: Attach = peer.attach(0, **{direction: "queue"}).performative
    assert (answer.source, answer.target) == (None, None)
    frame = peer.next_frame()
    assert isinstance(frame.performative, Detach)
    assert frame.performative.closed is True
    condition, description, _ = frame.fields[2].value  # three fields, always
    assert condition == "amqp:unauthorized-access"
    assert "queue" in description


@pytest.mark.parametrize("direction", ["receives_from", "sends_to"])
def test_the_error_for_an_unknown_entity_has_the_text_that_sdks_look_for(root: RawPeer, direction: str) -> None:
    answer: Attach = root.attach(0, **{direction: "no/where"}).performative
    assert (answer.source, answer.target) == (None, None)
    detach = root.expect(Detach)
    assert detach.closed is True
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-found"
    assert detach.error.description.startswith("The messaging entity 'sb://")
    assert "no/where' could not be found." in detach.error.description


def test_a_refused_attach_leaves_the_session_and_the_handle_usable(root: RawPeer) -> None:
    root.attach(0, sends_to="nowhere")
    root.expect(Detach)
    root.send(Detach(handle=0, closed=True))
    root.sender(0, "queue")
    root.send_accepted(0, b"body")


def test_detach_end_and_close_are_answered(root: RawPeer) -> None:
    root.sender(7, "queue")
    root.send(Detach(handle=7, closed=True))
    detach = root.expect(Detach)
    assert (detach.closed, detach.error) == (True, None)
    root.send(End())
    assert root.expect(End).error is None
    root.send(Close())
    assert root.expect(Close).error is None
    assert root.is_hung_up()


def test_a_stopping_broker_closes_with_connection_forced(tmp_path: Path) -> None:
    broker = BrokerThread(tls_folder=tmp_path)
    with RawPeer(broker) as peer:
        peer.open_as_root()
        broker.stop()
        frame = peer.next_frame()
        assert isinstance(frame.performative, Close)
        error = frame.fields[0].value
        assert len(error) == 3
        assert error[0] == "amqp:connection:forced"
        assert peer.is_hung_up()


# --- $cbs ---


@pytest.fixture
def guest(peer: RawPeer) -> RawPeer:
    """Opened without any right so far."""
    peer.login("ANONYMOUS")
    peer.open()
    return peer


@pytest.mark.parametrize(
    ("link", "reply_to"),
    [
        pytest.param({"reply_to": "$cbs"}, None, id="without reply-to"),
        pytest.param({"reply_name": "cbs-replies"}, "cbs-replies", id="by link name"),
        pytest.param({"reply_to": "an-address"}, "an-address", id="by address"),
    ],
)
def test_a_put_token_finds_its_reply_link(
    guest: RawPeer, broker: BrokerThread, link: dict[str, str], reply_to: str | None
) -> None:
    guest.cbs_links(**link)
    token = sas_token("sb://localhost/queue", seconds(broker, 3600))
    reply = guest.put_token(token, "sb://localhost/queue", reply_to=reply_to)
    assert reply.application_properties == {"status-code": 202, "status-description": "Accepted"}
    guest.sender(2, "queue")
    guest.send_accepted(2, b"body")


def test_of_two_reply_links_the_named_one_gets_the_reply(guest: RawPeer, broker: BrokerThread) -> None:
    guest.cbs_links(reply_to="first")
    guest.receiver(2, "$cbs", name="second-link", reply_to="second", credit=10)
    request = Message(
        properties=Properties(message_id="1", reply_to="second"),
        application_properties={"operation": "put-token", "name": "queue"},
        value=sas_token("queue", seconds(broker, 60)),
    )
    guest.transfer(0, request.encode(), settled=True)
    assert guest.expect(Transfer).handle == 2


@pytest.mark.parametrize("message_id", [uuid4(), "text", ULong(7), b"bytes"])
def test_the_correlation_id_keeps_its_type_and_the_status_is_an_int(
    guest: RawPeer, broker: BrokerThread, message_id: UUID | str | ULong | bytes
) -> None:
    guest.cbs_links()
    reply = guest.put_token(sas_token("queue", seconds(broker, 60)), "queue", message_id=message_id)
    assert reply.properties is not None
    assert reply.properties.correlation_id == message_id
    assert type(reply.properties.correlation_id) is type(message_id)
    assert reply.application_properties is not None
    assert type(reply.application_properties["status-code"]) is Int
    assert "error-condition" not in reply.application_properties


def test_invalid_tokens_are_answered_401_with_the_reason(guest: RawPeer, broker: BrokerThread) -> None:
    guest.cbs_links()
    later = seconds(broker, 3600)
    good = sas_token("sb://localhost/queue", later)
    refused = {
        "has expired": sas_token("sb://localhost/queue", seconds(broker, 0)),
        "made for another resource": sas_token("sb://localhost/other", later),
        "signature does not match": sas_token("sb://localhost/queue", later, key="guessed"),
        "does not match any key of that name": sas_token("sb://localhost/queue", later, rule="nobody"),
        "not match": good.replace(f"se={later}", f"se={later + 1}"),
        "is not a number": good.replace(f"se={later}", "se=tomorrow"),
        "no 'sig'": "SharedAccessSignature sr=queue",
        "not a shared access signature": "open sesame",
        "identity provider": "eyJh.eyJz.c2ln",
        "at most": "SharedAccessSignature " + "x" * 20_000,
        "no token": 42,
    }
    for reason, token in refused.items():
        reply = guest.put_token(token, "sb://localhost/queue")
        properties = reply.application_properties or {}
        assert properties["status-code"] == 401, reason
        assert reason in properties["status-description"]
        assert properties["status-description"].endswith(".")
        assert properties["error-condition"] == "com.microsoft:auth-failed"
    guest.attach(2, sends_to="queue")
    assert guest.expect(Detach).error is not None
    # None of them spoilt the links, nor what a good token gives.
    assert (guest.put_token(good, "sb://localhost/queue").application_properties or {})["status-code"] == 202


def test_a_token_gives_only_the_rights_of_its_rule_and_only_at_its_path(start_broker: StartBroker) -> None:
    rule = AuthorizationRule(name="sender", primary_key="k", rights=frozenset({Right.SEND}))
    queues = (QueueDefinition(name="queue", authorization_rules=(rule,)), QueueDefinition(name="other"))
    broker = start_broker(namespace=NamespaceDefinition(queues=queues), data=None)
    with RawPeer(broker) as peer:
        peer.open()
        peer.cbs_links()
        token = sas_token("amqp://host/QUEUE/", seconds(broker, 60), key="k", rule="sender")
        reply = peer.put_token(token, "amqp://host/queue")
        assert (reply.application_properties or {})["status-code"] == 202
        peer.sender(2, "Queue")
        peer.send_accepted(2, b"body")
        for handle, direction in ((3, {"receives_from": "queue"}), (4, {"sends_to": "other"})):
            peer.attach(handle, **direction)
            error = peer.expect(Detach).error
            assert error is not None
            assert error.condition == "amqp:unauthorized-access"


def test_a_token_that_expires_detaches_its_links_after_a_grace(guest: RawPeer, broker: BrokerThread) -> None:
    guest.cbs_links()
    guest.put_token(sas_token("queue", seconds(broker, 60)), "queue")
    guest.sender(2, "queue")
    guest.receiver(3, "queue")
    broker.advance(seconds=69)
    guest.send_accepted(2, b"in the grace")
    broker.advance(seconds=2)
    for handle in (2, 3):
        detach = guest.expect(Detach)
        assert (detach.handle, detach.closed) == (handle, True)
        assert detach.error is not None
        assert detach.error.condition == "amqp:unauthorized-access"
        assert "expired" in detach.error.description
        guest.send(Detach(handle=handle, closed=True))
    # The links of $cbs stand, and a new token opens the way again.
    guest.put_token(sas_token("queue", seconds(broker, 60)), "queue")
    guest.sender(4, "queue")
    guest.send_accepted(4, b"again")


def test_a_renewed_token_keeps_the_links(guest: RawPeer, broker: BrokerThread) -> None:
    guest.cbs_links()
    guest.put_token(sas_token("queue", seconds(broker, 60)), "queue")
    guest.sender(2, "queue")
    broker.advance(seconds=50)
    guest.put_token(sas_token("queue", seconds(broker, 600)), "queue")
    broker.advance(seconds=300)
    guest.send_accepted(2, b"still here")


def test_a_token_is_valid_on_its_own_connection_only(guest: RawPeer, broker: BrokerThread) -> None:
    guest.cbs_links()
    guest.put_token(sas_token("queue", seconds(broker, 60)), "queue")
    with RawPeer(broker) as other:
        other.open()
        other.attach(0, sends_to="queue")
        error = other.expect(Detach).error
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"


# --- sending ---


def test_a_message_over_several_frames_arrives_whole(root: RawPeer) -> None:
    body = bytes(range(256)) * 40
    payload = Message(data=[body]).encode()
    cuts = [payload[at : at + 1000] for at in range(0, len(payload), 1000)]
    root.sender(0, "queue")
    root.send(Transfer(handle=0, delivery_id=0, delivery_tag=TAG, message_format=0, more=True), cuts[0])
    for cut in cuts[1:-1]:
        root.send(Transfer(handle=0, more=True), cut)
    root.send(Transfer(handle=0), cuts[-1])
    outcome = root.expect(Disposition)
    assert (outcome.role, outcome.first, outcome.settled) == (True, 0, True)
    assert outcome.last in (None, 0)
    assert isinstance(outcome.state, Accepted)
    root.receiver(1, "queue", credit=1)
    assert Message.decode(root.next_frame().payload).data == [body]


def test_a_delivery_that_does_not_fit_the_frames_of_the_client_is_cut(peer: RawPeer) -> None:
    peer.login("PLAIN", b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE")
    peer.open(max_frame_size=512)
    body = bytes(range(256)) * 20
    peer.sender(0, "queue")
    peer.send_accepted(0, body)
    peer.receiver(1, "queue", credit=1)
    frames = []
    while True:
        frames.append(peer.next_frame())
        if not frames[-1].performative.more:
            break
    first, *others = (frame.performative for frame in frames)
    assert len(others) >= 10
    assert (first.delivery_id, len(first.delivery_tag), first.message_format) == (0, 16, 0)
    assert {(frame.delivery_id, frame.delivery_tag) for frame in others} == {(None, None)}
    assert Message.decode(b"".join(frame.payload for frame in frames)).data == [body]


def test_an_aborted_delivery_is_not_stored(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send(Transfer(handle=0, delivery_id=0, delivery_tag=TAG, more=True), MESSAGE[:5])
    root.send(Transfer(handle=0, aborted=True))
    root.receiver(1, "queue")
    root.credit(1, 1, drain=True)
    assert root.expect(Flow).link_credit == 0


def test_a_settled_send_is_stored_and_not_answered(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.transfer(0, MESSAGE, settled=True)
    root.receiver(1, "queue", credit=1)
    assert isinstance(root.next_frame().performative, Transfer)  # no disposition came before it


def test_a_batch_is_split_into_messages_with_one_outcome(root: RawPeer) -> None:
    inner = [Message(properties=Properties(message_id=str(at)), data=[b"m%d" % at]).encode() for at in range(3)]
    envelope = Message(properties=Properties(message_id="0"), data=inner)
    root.sender(0, "queue")
    delivery_id = root.transfer(0, envelope.encode(), message_format=BATCH_FORMAT)
    outcome = root.expect(Disposition)
    assert (outcome.first, outcome.settled, type(outcome.state)) == (delivery_id, True, Accepted)
    root.receiver(1, "queue", credit=3)
    bodies = [Message.decode(root.next_frame().payload).data for _ in range(3)]
    assert bodies == [[b"m0"], [b"m1"], [b"m2"]]


def refused(peer: RawPeer, payload: bytes, **fields: Any) -> Error:
    """Send what is refused; the error in the outcome."""
    delivery_id = peer.transfer(0, payload, **fields)
    frame = peer.next_frame()
    outcome: Disposition = frame.performative
    assert (outcome.role, outcome.first, outcome.settled) == (True, delivery_id, True)
    assert isinstance(outcome.state, Rejected)
    assert outcome.state.error is not None
    (error,) = frame.fields[4].value
    assert len(error.value) == 3
    return outcome.state.error


def test_a_rejected_message_leaves_the_link_open(root: RawPeer) -> None:
    good = Message(data=[MESSAGE]).encode()
    cases: dict[str, tuple[bytes, dict[str, Any]]] = {
        "The batch has no message.": (
            Message(properties=Properties(message_id="0")).encode(),
            {"message_format": BATCH_FORMAT},
        ),
        "The message could not be decoded": (b"garbage", {}),
        "is empty": (b"", {}),
        "The batch could not be decoded": (good + b"\x00\x53", {"message_format": BATCH_FORMAT}),
        "ends in the middle": (MESSAGE[:-1], {}),
        "Message format 0x5 is not known.": (MESSAGE, {"message_format": 5}),
    }
    root.sender(0, "queue")
    for reason, (payload, fields) in cases.items():
        error = refused(root, payload, **fields)
        assert error.condition in ("amqp:decode-error", "amqp:not-implemented"), reason
        assert reason in error.description
    root.send_accepted(0, b"good")


def test_a_batch_with_one_bad_message_is_refused_whole(root: RawPeer) -> None:
    root.sender(0, "queue")
    error = refused(root, Message(data=[MESSAGE, b"garbage"]).encode(), message_format=BATCH_FORMAT)
    assert error.condition == "amqp:decode-error"
    root.send_accepted(0, b"the first of all")
    root.receiver(1, "queue", credit=1)
    message = Message.decode(root.next_frame().payload)
    assert message.data == [b"the first of all"]
    assert (message.message_annotations or {})["x-opt-sequence-number"] == 1


def test_a_message_over_the_limit_is_rejected_and_its_size_named(root: RawPeer) -> None:
    root.sender(0, "queue")
    half = b"\0" * 150_000
    root.send(Transfer(handle=0, delivery_id=0, delivery_tag=TAG, more=True), half)
    root.send(Transfer(handle=0), half)
    outcome = root.expect(Disposition)
    assert isinstance(outcome.state, Rejected)
    assert outcome.state.error is not None
    assert outcome.state.error.condition == "amqp:link:message-size-exceeded"
    assert "262144" in outcome.state.error.description


def test_more_credit_is_granted_before_it_is_used_up(root: RawPeer) -> None:
    granted = root.sender(0, "queue").link_credit
    assert granted is not None
    assert granted >= 100
    topped_up = None
    for _ in range(granted):
        root.transfer(0, MESSAGE)
        while not isinstance(found := root.next_frame().performative, Disposition):
            topped_up = found
        if topped_up is not None:
            break
    assert isinstance(topped_up, Flow)
    assert topped_up.handle == 0
    assert (topped_up.link_credit or 0) >= 100


# --- receiving ---


def delivered(peer: RawPeer) -> tuple[Transfer, Message]:
    frame = peer.next_frame()
    assert isinstance(frame.performative, Transfer), frame
    return frame.performative, Message.decode(frame.payload)


def test_deliveries_have_the_lock_token_as_tag_and_annotations_of_the_exact_types(
    root: RawPeer, broker: BrokerThread
) -> None:
    sent = Message(
        message_annotations={Symbol("x-opt-partition-key"): "p", Symbol("mine"): Int(5)},
        properties=Properties(message_id="m"),
        data=[b"body"],
    )
    root.sender(0, "queue")
    root.transfer(0, sent.encode())
    root.expect(Disposition)
    root.receiver(1, "queue", credit=1, rcv_settle_mode=1)
    transfer, message = delivered(root)
    assert transfer.delivery_id == 0
    assert transfer.message_format == 0
    assert transfer.settled is False
    assert transfer.delivery_tag is not None
    assert len(transfer.delivery_tag) == 16
    now = broker.clock()
    annotations = message.message_annotations
    assert annotations == {
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": now,
        "x-opt-locked-until": now + 60_000,
        "x-opt-partition-key": "p",
        "mine": 5,
    }
    assert {type(key) for key in annotations} == {Symbol}
    assert {str(key): type(value) for key, value in annotations.items()} == {
        "x-opt-sequence-number": int,  # a long
        "x-opt-enqueued-time": Timestamp,
        "x-opt-locked-until": Timestamp,
        "x-opt-partition-key": str,
        "mine": Int,
    }
    assert message.header is not None
    assert (message.header.durable, message.header.delivery_count, message.header.ttl) == (False, 0, None)


def test_receive_and_delete_sends_settled_and_without_a_lock(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"gone")
    root.receiver(1, "queue", credit=1, snd_settle_mode=1)
    transfer, message = delivered(root)
    assert transfer.settled is True
    assert transfer.delivery_tag == b""
    assert "x-opt-locked-until" not in (message.message_annotations or {})


def test_header_and_properties_have_the_time_to_live_and_expiry(root: RawPeer, broker: BrokerThread) -> None:
    root.sender(0, "queue")
    root.transfer(0, Header(durable=True, priority=7, ttl=5000).encode() + MESSAGE)
    root.expect(Disposition)
    root.receiver(1, "queue", credit=1)
    _, message = delivered(root)
    assert message.header is not None
    assert message.properties is not None
    assert (message.header.ttl, message.header.priority) == (5000, 7)
    assert message.properties.absolute_expiry_time == broker.clock() + 5000
    assert message.properties.message_id == "m"


def test_delivery_ids_run_on_across_the_links_of_a_session(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"a", b"b", b"c", b"d")
    root.receiver(1, "queue")
    root.receiver(2, "queue")
    found: list[Transfer] = []
    for handle in (1, 2, 1, 2):
        root.credit(handle, 1, delivery_count=len(found) // 2)
        found.append(delivered(root)[0])
    assert [transfer.delivery_id for transfer in found] == [0, 1, 2, 3]
    assert len({transfer.handle for transfer in found}) == 2


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (Accepted(), Accepted()),
        (Released(), Released()),
        (Modified(delivery_failed=True), Modified()),
        (Modified(undeliverable_here=True), Modified()),
        (Rejected(), Rejected()),
        (
            Rejected(error=Error(condition="com.microsoft:dead-letter", info={Symbol("DeadLetterReason"): "r"})),
            Rejected(),
        ),
    ],
)
def test_each_outcome_is_confirmed_settled_with_the_same_outcome_and_no_error(
    root: RawPeer, sent: Any, answer: Any
) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"body")
    root.receiver(1, "queue", credit=1, rcv_settle_mode=1)
    transfer, _ = delivered(root)
    assert transfer.delivery_id is not None
    root.dispose(transfer.delivery_id, sent)
    confirmed = root.expect(Disposition)
    assert (confirmed.role, confirmed.first, confirmed.settled) == (False, transfer.delivery_id, True)
    assert confirmed.state == answer


def test_a_settled_outcome_is_final_and_not_confirmed(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"first", b"second")
    root.receiver(1, "queue", credit=1, rcv_settle_mode=1)
    transfer, _ = delivered(root)
    assert transfer.delivery_id is not None
    root.dispose(transfer.delivery_id, Accepted(), settled=True)
    root.credit(1, 1, delivery_count=1)
    _, second = delivered(root)  # the next frame: no disposition came before it
    assert second.data == [b"second"]


def test_a_released_message_returns_at_once_uncounted_under_a_new_lock(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"body")
    root.receiver(1, "queue", credit=1, rcv_settle_mode=1)
    first, _ = delivered(root)
    assert first.delivery_id is not None
    root.dispose(first.delivery_id, Released(), settled=True)
    root.credit(1, 1, delivery_count=1)
    again, message = delivered(root)
    assert message.header is not None
    assert message.header.delivery_count == 0
    assert again.delivery_tag != first.delivery_tag


def test_a_range_is_settled_by_one_disposition(root: RawPeer, broker: BrokerThread) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, *(b"%d" % at for at in range(5)))
    root.receiver(1, "queue", credit=5, rcv_settle_mode=1)
    for _ in range(5):
        delivered(root)
    root.send(Disposition(role=True, first=0, last=4, state=Accepted()))
    confirmed: set[int] = set()
    while len(confirmed) < 5:
        disposition = root.expect(Disposition)
        assert (disposition.role, disposition.settled, disposition.state) == (False, True, Accepted())
        last = disposition.first if disposition.last is None else disposition.last
        confirmed |= set(range(disposition.first, last + 1))
    assert confirmed == set(range(5))
    assert broker.counters().active == 0


def test_a_settlement_after_the_lock_expired_is_answered_and_the_link_stays_open(
    root: RawPeer, broker: BrokerThread
) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"body")
    root.receiver(1, "queue", credit=2, rcv_settle_mode=1)
    first, _ = delivered(root)
    assert first.delivery_id is not None
    broker.advance(seconds=61)
    again, message = delivered(root)
    assert (message.header or pytest.fail("no header")).delivery_count == 1
    root.dispose(first.delivery_id, Accepted())
    lost = root.expect(Disposition)
    assert (lost.role, lost.first, lost.settled) == (False, first.delivery_id, True)
    assert isinstance(lost.state, Rejected)
    assert lost.state.error is not None
    assert lost.state.error.condition == "com.microsoft:message-lock-lost"
    assert again.delivery_id is not None
    root.dispose(again.delivery_id, Accepted())
    assert isinstance(root.expect(Disposition).state, Accepted)


def test_a_drain_is_answered_with_a_flow_that_uses_up_the_credit(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"one")
    root.receiver(1, "queue")
    root.credit(1, 10, drain=True)
    delivered(root)
    flow = root.expect(Flow)
    assert flow.handle is not None
    assert (flow.delivery_count, flow.link_credit, flow.drain, flow.echo) == (10, 0, True, False)
    assert flow.next_incoming_id is not None
    # Nothing more comes until there is new credit.
    root.send_accepted(0, b"two")
    root.credit(1, 1, delivery_count=10)
    assert delivered(root)[1].data == [b"two"]


def test_an_echo_is_answered_with_the_state_of_the_link(root: RawPeer) -> None:
    root.receiver(1, "queue")
    root.credit(1, 7, echo=True)
    flow = root.expect(Flow)
    assert (flow.delivery_count, flow.link_credit) == (0, 7)


def test_deliveries_respect_the_link_credit(root: RawPeer) -> None:
    root.sender(0, "queue")
    root.send_accepted(0, b"a", b"b", b"c")
    root.receiver(1, "queue", credit=2)
    assert [delivered(root)[1].data for _ in range(2)] == [[b"a"], [b"b"]]
    root.credit(1, 0, delivery_count=2, echo=True)
    assert root.expect(Flow).delivery_count == 2


def test_deliveries_respect_the_session_window(peer: RawPeer) -> None:
    peer.login("PLAIN", b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE")
    peer.open()
    peer.sender(0, "queue")
    peer.send_accepted(0, b"a", b"b", b"c")
    peer.attach(1, receives_from="queue")
    window: dict[str, Any] = {"next_outgoing_id": 3, "outgoing_window": 1000}
    peer.send(Flow(next_incoming_id=0, incoming_window=1, handle=1, delivery_count=0, link_credit=10, **window))
    assert delivered(peer)[1].data == [b"a"]
    peer.send(Flow(next_incoming_id=1, incoming_window=0, echo=True, **window))
    assert peer.expect(Flow).next_outgoing_id == 1
    peer.send(Flow(next_incoming_id=1, incoming_window=2, **window))
    assert [delivered(peer)[1].data for _ in range(2)] == [[b"b"], [b"c"]]


def test_a_transfer_on_no_link_ends_the_session_and_not_the_connection(root: RawPeer) -> None:
    root.transfer(9, MESSAGE)
    error = root.expect(End).error
    assert error is not None
    assert error.condition == "amqp:session:unattached-handle"
    root.send(End())
    root.send(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10), channel=3)
    assert root.expect(Begin).remote_channel == 3


def test_a_frame_that_is_no_performative_closes_the_connection_with_a_reason(root: RawPeer) -> None:
    root.write(struct.pack(">IBBH", 12, 2, 0, 0) + b"\xff\xff\xff\xff")
    error = root.expect(Close).error
    assert error is not None
    assert error.condition == "amqp:decode-error"
    assert root.is_hung_up()


def test_a_frame_over_the_size_limit_is_refused_before_it_is_read(root: RawPeer) -> None:
    root.write(struct.pack(">IBBH", 0x7FFFFFFF, 2, 0, 0))
    error = root.expect(Close).error
    assert error is not None
    assert error.condition == "amqp:connection:framing-error"
    assert root.is_hung_up()

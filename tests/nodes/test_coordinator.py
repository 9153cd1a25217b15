"""Transactions of a client: the coordinator link, and work of a transaction on other links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted, Error, Modified, Rejected, Released
from peeklock.amqp.performatives import Attach, Disposition, Flow, Source, Target, Transfer
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.amqp.types import Array, Described, Symbol, Timestamp, ULong
from peeklock.client import LinkClosed, ReceivedMessage, Receiver, Sender, SendRejected, SettlementFailed, connect
from peeklock.entities.authorization import DEFAULT_KEY, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.limits.broker import MAX_OPEN_TRANSACTIONS, MAX_TRANSACTION_MESSAGES
from peeklock.store.base import StoreFull
from sdk.raw_peer import RawPeer
from server.held_store import HeldStore
from serving import BrokerThread, ServedBroker, StartBroker

TIME_LIMIT = 120
VIA = "com.microsoft:transfer-destination-address"


class Client:
    """A connection with a coordinator link."""

    def __init__(self, broker: BrokerThread | ServedBroker) -> None:
        self.connection = connect(broker.connection_string, sasl="plain", timeout=10)
        self.coordinator = self.connection.sender(Coordinator(capabilities=["amqp:local-transactions"]))

    def declare(self) -> bytes:
        outcome = self.coordinator.send(Message(value=Declare()))
        assert isinstance(outcome, Declared)
        return outcome.txn_id

    def discharge(self, transaction: bytes, *, fail: bool = False) -> None:
        outcome = self.coordinator.send(Message(value=Discharge(transaction, fail)))
        assert isinstance(outcome, Accepted)

    def send(self, *bodies: str, to: str = "queue", within: bytes | None = None) -> None:
        sender = self.connection.sender(to)
        for body in bodies:
            sender.send(text(body), state=None if within is None else TransactionalState(within))
        sender.close()

    def new_session(self) -> None:
        """Begin another AMQP session for the links that are attached from now on."""
        self.connection._session = None

    def ask(self, operation: str, body: dict[str, Any], *, within: bytes | None, of: str = "queue") -> tuple[int, Any]:
        """Send a request to `$management`. Return the status, and the body or, if it failed, the condition."""
        with self.connection.requester(f"{of}/$management") as requester:
            message = Message(application_properties={"operation": f"com.microsoft:{operation}"}, value=body)
            reply = requester.request(message, state=None if within is None else TransactionalState(within))
        properties = reply.application_properties or {}
        status = properties["statusCode"]
        return status, reply.value if status == 200 else properties["errorCondition"]


def text(body: str, **fields: Any) -> Message:
    return Message(data=[body.encode()], **fields)


def settle(receiver: Receiver, messages: list[ReceivedMessage], transaction: bytes, outcome: Any) -> None:
    receiver.settle(messages, TransactionalState(transaction, outcome).encode(), wait=True)


def refused_commit(client: Client, transaction: bytes) -> str:
    """Ask for a commit that must be rolled back, and return the reason."""
    with pytest.raises(SendRejected) as refused:
        client.discharge(transaction)
    assert refused.value.condition == Condition.TRANSACTION_ROLLBACK
    return refused.value.description


def bodies(client: Client, address: str = "queue", count: int = 1) -> list[str]:
    """Receive and delete exactly that many messages, and return their bodies."""
    found: list[str] = []
    with client.connection.receiver(address, mode="receive-and-delete", credit=0) as receiver:
        while len(found) < count:
            found += [message.body.decode() for message in receiver.receive(count - len(found))]
    return found


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(
        QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=300_000),
        QueueDefinition(name="other", lock_duration_ms=300_000),
        QueueDefinition(name="sessions", requires_session=True),
    )


@pytest.fixture
def clients(broker: BrokerThread) -> Iterator[Callable[[], Client]]:
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(broker))
        return made[-1]

    yield make
    for client in made:
        client.connection.close()


@pytest.fixture
def client(clients: Callable[[], Client]) -> Client:
    return clients()


# --- declare and discharge ---


def test_a_transaction_without_work_is_committed_or_rolled_back(client: Client) -> None:
    first, second = client.declare(), client.declare()
    assert first != second
    assert len(first) <= 32  # 4.5.5
    client.discharge(first)
    client.discharge(second, fail=True)


def test_a_discharge_that_does_not_say_fail_commits(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    client.coordinator.send(Message(value=Discharge(transaction)))
    assert broker.counters().active == 1


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("name", [b"", b"unknown", bytes(100)])
def test_an_unknown_transaction_cannot_be_discharged(client: Client, name: bytes, fail: bool) -> None:
    with pytest.raises(SendRejected) as refused:
        client.discharge(name, fail=fail)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID


@pytest.mark.parametrize("fail", [False, True])
def test_a_transaction_is_discharged_once(client: Client, broker: BrokerThread, fail: bool) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    client.discharge(transaction, fail=fail)
    with pytest.raises(SendRejected) as refused:
        client.discharge(transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID
    assert broker.counters().active == (0 if fail else 1)


def test_a_transaction_belongs_to_its_connection(client: Client, clients: Callable[[], Client]) -> None:
    stranger = clients()
    transaction = client.declare()
    with pytest.raises(SendRejected) as refused:
        stranger.discharge(transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID
    with pytest.raises(SendRejected) as refused:
        stranger.send("a", within=transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID
    client.discharge(transaction)


def test_a_global_transaction_is_refused(client: Client) -> None:
    with pytest.raises(SendRejected) as refused:
        client.coordinator.send(Message(value=Declare(b"everywhere")))
    assert refused.value.condition == Condition.NOT_IMPLEMENTED
    client.discharge(client.declare())


GARBAGE = {
    "no bytes": b"",
    "not AMQP": b"\xff\xfe\xfd",
    "a body of data": Message(data=[b"declare"]).encode(),
    "a plain value": Message(value="declare").encode(),
    "null": Message(value=None).encode(),
    "an outcome": Message(value=Accepted()).encode(),
    "an unknown description": Message(value=Described(ULong(0x99), [])).encode(),
    "a discharge of nothing": Message(value=Described(ULong(0x32), [])).encode(),
    "a discharge of a number": Message(value=Described(ULong(0x32), [7, False])).encode(),
    "a discharge of a maybe": Message(value=Described(ULong(0x32), [b"id", "maybe"])).encode(),
    "too much": Message(data=[bytes(5000)]).encode(),
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_other_messages_than_declare_and_discharge_are_rejected_and_the_link_stays_open(
    client: Client, payload: bytes
) -> None:
    # Behind the client's own check of the size.
    client.coordinator._sender.remote.max_message_size = 0  # type: ignore[union-attr]
    with pytest.raises(SendRejected) as refused:
        client.coordinator.send(payload)
    assert refused.value.condition == Condition.DECODE_ERROR
    client.discharge(client.declare())


def test_a_transaction_may_be_declared_before_a_token_is_shown_but_work_needs_one(broker: BrokerThread) -> None:
    """The Java SDK does this if an application's first call creates a transaction."""
    endpoint = broker.connection_string.split(";")[0].removeprefix("Endpoint=sb")
    with connect(f"amqp{endpoint}", sasl="anonymous") as connection:
        transaction = connection.sender(Coordinator()).send(Message(value=Declare())).txn_id
        assert transaction
        with pytest.raises(LinkClosed) as refused:
            connection.sender("queue")
        assert refused.value.condition == Condition.UNAUTHORIZED_ACCESS
    with connect(broker.connection_string, sasl="anonymous") as connection:
        coordinator = connection.sender(Coordinator())
        transaction = coordinator.send(Message(value=Declare())).txn_id
        connection.sender("queue").send(text("a"), state=TransactionalState(transaction))
        coordinator.send(Message(value=Discharge(transaction, False)))
    assert broker.counters().active == 1


def test_many_transactions_are_in_flight_on_one_connection(client: Client, broker: BrokerThread) -> None:
    sender = client.connection.sender("queue")
    open_ones = [client.declare() for _ in range(200)]
    for place in range(3):
        for number, transaction in enumerate(open_ones):
            sender.post(text(f"{number}.{place}"), state=TransactionalState(transaction))
    discharges = [
        client.coordinator.post(Message(value=Discharge(transaction, number % 2 == 1)))
        for number, transaction in enumerate(open_ones)
    ]
    client.connection.wait(lambda: all(discharge.done for discharge in discharges), 10, "the discharges")
    assert {type(discharge.outcome) for discharge in discharges} == {Accepted}
    wanted = [f"{number}.{place}" for number in range(0, 200, 2) for place in range(3)]
    assert bodies(client, count=300) == wanted  # as committed, in the order of the sends within each
    assert broker.counters().active == 0


def test_the_open_transactions_of_a_connection_are_bounded(client: Client) -> None:
    open_ones = [client.declare() for _ in range(MAX_OPEN_TRANSACTIONS)]
    with pytest.raises(SendRejected) as refused:
        client.declare()
    assert refused.value.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    client.discharge(open_ones[0])
    client.declare()


# --- sends ---


def test_sends_are_visible_together_when_they_are_committed(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", "b", within=transaction)
    assert broker.counters().active == 0
    client.send("plain")
    client.discharge(transaction)
    assert bodies(client, count=3) == ["plain", "a", "b"]  # numbered when they are committed


def test_sends_that_are_rolled_back_leave_nothing(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", "b", within=transaction)
    client.discharge(transaction, fail=True)
    assert broker.counters().active == 0
    with pytest.raises(SendRejected) as refused:
        client.send("late", within=transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID


def test_a_batch_is_sent_within_a_transaction(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    batch = Message(data=[text(body).encode() for body in "abc"]).encode()
    sender = client.connection.sender("queue")
    sender.send(batch, message_format=0x80013700, state=TransactionalState(transaction))
    assert broker.counters().active == 0
    client.discharge(transaction)
    assert bodies(client, count=3) == ["a", "b", "c"]


def test_sends_and_discharge_need_not_wait_for_each_other(client: Client, broker: BrokerThread) -> None:
    """The order on the connection counts, even if messages of a sender are collected before they are handled."""
    transaction = client.declare()
    sender = client.connection.sender("queue")
    engine_sender, coordinator = sender._sender, client.coordinator._sender
    for number in range(5):
        state = TransactionalState(transaction) if number % 2 == 0 else None
        engine_sender.send(bytes([number]) * 16, (text(str(number)).encode(),), state=state)
    coordinator.send(b"discharge", (Message(value=Discharge(transaction, False)).encode(),))
    client.connection.flush()  # one write
    client.connection.wait(lambda: not engine_sender.unsettled and not coordinator.unsettled, 10, "the outcomes")
    assert sorted(bodies(client, count=5)) == ["0", "1", "2", "3", "4"]
    assert broker.counters().active == 0


def test_a_refused_settled_send_makes_its_transaction_fail(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    sender = client.connection.sender("sessions")
    sender.send(text("no session id"), settled=True, state=TransactionalState(transaction))
    refused_commit(client, transaction)
    assert broker.counters().active == 0


def test_a_spoilt_transaction_can_be_rolled_back(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    sender = client.connection.sender("sessions")
    sender.send(text("no session id"), settled=True, state=TransactionalState(transaction))
    client.discharge(transaction, fail=True)
    assert broker.counters("sessions").active == 0


def test_another_state_has_no_meaning_on_a_transfer(client: Client) -> None:
    with pytest.raises(SendRejected) as refused:
        client.connection.sender("queue").send(text("a"), state=Accepted())
    assert refused.value.condition == Condition.NOT_IMPLEMENTED


BAD_MESSAGES = {
    "no session id": (text("x").encode(), 0, Condition.NOT_ALLOWED),
    "not a message": (b"\xff", 0, Condition.DECODE_ERROR),
    "no batch": (b"\xff", 0x80013700, Condition.DECODE_ERROR),
    "of an unknown format": (text("x").encode(), 7, Condition.NOT_IMPLEMENTED),
}


@pytest.mark.parametrize("bad", BAD_MESSAGES)
def test_a_transaction_of_which_a_message_was_refused_cannot_be_committed(
    client: Client, broker: BrokerThread, bad: str
) -> None:
    """The Java SDK ignores the outcome of a send within a transaction; it checks only that of the discharge."""
    payload, message_format, condition = BAD_MESSAGES[bad]
    transaction = client.declare()
    sender = client.connection.sender("sessions")
    with pytest.raises(SendRejected) as refused:
        sender.send(payload, message_format=message_format, state=TransactionalState(transaction))
    assert refused.value.condition == condition
    client.new_session()
    client.send("a", within=transaction)  # it is not bound to 'sessions'
    refused_commit(client, transaction)
    assert broker.counters().active == 0


# --- settlements ---

DEAD = Rejected(
    error=Error(
        condition=Condition.DEAD_LETTER,
        description="",
        info={Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "because"},
    )
)
OUTCOMES: dict[str, tuple[Any, dict[str, int]]] = {
    "complete": (Accepted(), {}),
    "complete by default": (None, {}),
    "abandon": (Modified(), {"active": 1}),
    "defer": (Modified(undeliverable_here=True), {"deferred": 1}),
    "dead-letter": (DEAD, {"letters": 1}),
}


def state_of(broker: BrokerThread) -> dict[str, int]:
    counters = broker.counters()
    letters = broker.counters("queue/$deadletterqueue").active
    found = {"active": counters.active, "deferred": counters.deferred, "letters": letters}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_settlement_takes_effect_at_the_commit(client: Client, broker: BrokerThread, outcome: str) -> None:
    state, after = OUTCOMES[outcome]
    client.send("a")
    receiver = client.connection.receiver("queue", credit=1)
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, state)
    assert state_of(broker) == {"active": 1}
    assert receiver.receive(timeout=0) == []  # it stays locked
    client.discharge(transaction)
    assert state_of(broker) == after
    if outcome == "abandon":
        (again,) = receiver.receive()
        assert again.message.header is not None
        assert again.message.header.delivery_count == 1
    if outcome == "dead-letter":
        (letter,) = client.connection.receiver("queue/$deadletterqueue").receive()
        assert letter.message.application_properties == {
            "DeadLetterReason": "why",
            "DeadLetterErrorDescription": "because",
        }


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_settlement_that_is_rolled_back_leaves_the_message_locked(
    client: Client, broker: BrokerThread, outcome: str
) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue", credit=1)
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, OUTCOMES[outcome][0])
    client.discharge(transaction, fail=True)
    assert state_of(broker) == {"active": 1}
    token = messages[0].lock_token
    complete = {"disposition-status": "completed", "lock-tokens": Array([token], type(token))}
    assert client.ask("update-disposition", complete, within=None)[0] == 200
    assert state_of(broker) == {}


def test_the_answer_to_a_settlement_is_the_transactions_state_with_the_same_outcome(broker: BrokerThread) -> None:
    with RawPeer(broker) as peer:
        peer.open_as_root()
        attach = Attach(
            name="coordinator", handle=0, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0
        )
        peer.send(attach)
        answer = peer.expect(Attach)
        assert isinstance(answer.target, Coordinator)
        assert (peer.expect(Flow).link_credit or 0) > 0
        declare = peer.transfer(0, Message(value=Declare()).encode())
        declared = peer.expect(Disposition)
        assert (declared.role, declared.first, declared.settled) == (True, declare, True)
        assert isinstance(declared.state, Declared)
        transaction = declared.state.txn_id
        peer.sender(1, "queue")
        peer.send_accepted(1, *[b"x"] * len(OUTCOMES))
        sent = peer.transfer(1, Message(data=[b"y"]).encode(), state=TransactionalState(transaction))
        noted = peer.expect(Disposition)
        assert (noted.role, noted.first, noted.settled) == (True, sent, True)
        assert noted.state == TransactionalState(transaction, Accepted())
        peer.receiver(2, "queue", credit=len(OUTCOMES), rcv_settle_mode=1)
        delivered = [peer.expect(Transfer).delivery_id for _ in OUTCOMES]
        for delivery_id, (state, _) in zip(delivered, OUTCOMES.values(), strict=True):
            assert delivery_id is not None
            peer.dispose(delivery_id, TransactionalState(transaction, state))
            noted = peer.expect(Disposition)
            assert (noted.role, noted.first, noted.settled) == (False, delivery_id, True)
            assert isinstance(noted.state, TransactionalState)
            assert noted.state.txn_id == transaction
            assert type(noted.state.outcome) is (Accepted if state is None else type(state))
            if isinstance(noted.state.outcome, Rejected):
                assert noted.state.outcome.error is None  # clients take one for a failure
        discharge = peer.transfer(0, Message(value=Discharge(transaction, False)).encode())
        done = peer.expect(Disposition)
        assert (done.role, done.first, done.settled, done.state) == (True, discharge, True, Accepted())


def refused_settlement(receiver: Receiver, messages: list[ReceivedMessage], transaction: bytes, outcome: Any) -> str:
    with pytest.raises(SettlementFailed) as refused:
        settle(receiver, messages, transaction, outcome)
    return refused.value.condition


def test_an_unknown_transaction_settles_nothing(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    assert refused_settlement(receiver, receiver.receive(), b"x", Accepted()) == Condition.TRANSACTION_UNKNOWN_ID
    assert state_of(broker) == {"active": 1}


def test_released_is_no_outcome_for_a_transaction(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    transaction = client.declare()
    assert refused_settlement(receiver, receiver.receive(), transaction, Released()) == Condition.NOT_IMPLEMENTED
    refused_commit(client, transaction)
    assert state_of(broker) == {"active": 1}


def test_a_reason_that_is_too_long_is_refused_before_the_commit(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    transaction = client.declare()
    client.send("b", within=transaction)
    error = Error(condition=Condition.DEAD_LETTER, description="", info={Symbol("DeadLetterReason"): "x" * 5000})
    condition = refused_settlement(receiver, receiver.receive(), transaction, Rejected(error=error))
    assert condition == Condition.ARGUMENT_ERROR
    refused_commit(client, transaction)
    assert state_of(broker) == {"active": 1}


def test_a_lock_that_expires_before_the_commit_rolls_back_the_transaction(client: Client, broker: BrokerThread) -> None:
    client.send("a", "b")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive(2)
    broker.advance(290)
    transaction = client.declare()
    client.send("c", within=transaction)
    settle(receiver, messages, transaction, Accepted())
    broker.advance(20)
    assert "lock" in refused_commit(client, transaction)
    assert state_of(broker) == {"active": 2}


def test_a_message_that_is_settled_otherwise_before_the_commit_undoes_everything(
    client: Client, broker: BrokerThread
) -> None:
    client.send("a", "b")
    receiver = client.connection.receiver("queue")
    first, second = receiver.receive(2)
    transaction = client.declare()
    settle(receiver, [first], transaction, Accepted())
    settle(receiver, [second], transaction, Accepted())
    token = first.lock_token
    complete = {"disposition-status": "completed", "lock-tokens": Array([token], type(token))}
    assert client.ask("update-disposition", complete, within=None)[0] == 200
    refused_commit(client, transaction)
    assert state_of(broker) == {"active": 1}


def test_one_of_two_transactions_settles_a_message(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    winner, loser = client.declare(), client.declare()
    settle(receiver, messages, winner, Accepted())
    client.send("of the loser", within=loser)
    token = messages[0].lock_token
    complete = {"disposition-status": "completed", "lock-tokens": Array([token], type(token))}
    assert client.ask("update-disposition", complete, within=loser)[0] == 200
    client.discharge(winner)
    refused_commit(client, loser)
    assert state_of(broker) == {}


def test_a_message_is_settled_once_within_a_transaction(client: Client) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    token = messages[0].lock_token
    complete = {"disposition-status": "completed", "lock-tokens": Array([token], type(token))}
    answer = client.ask("update-disposition", complete, within=transaction)
    assert answer == (410, Condition.MESSAGE_LOCK_LOST)
    refused_commit(client, transaction)


def test_a_failure_of_a_settled_disposition_is_reported_at_the_discharge(client: Client, broker: BrokerThread) -> None:
    client.send("a", to="other")
    receiver = client.connection.receiver("other", mode="settle-first")
    messages = receiver.receive()
    transaction = client.declare()
    client.send("b", within=transaction)  # which binds it to 'queue'
    receiver.settle(messages, TransactionalState(transaction, Accepted()).encode())
    refused_commit(client, transaction)
    assert (broker.counters().active, broker.counters("other").active) == (0, 1)


def test_a_receiver_that_settles_first_settles_within_a_transaction(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue", mode="settle-first")
    messages = receiver.receive()
    transaction = client.declare()
    receiver.settle(messages, TransactionalState(transaction, Accepted()).encode())
    client.discharge(transaction)
    assert state_of(broker) == {}


def test_the_receiver_may_close_before_the_commit(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    receiver.close()
    client.discharge(transaction)
    assert state_of(broker) == {}


def test_a_session_is_worked_on_within_a_transaction(client: Client, broker: BrokerThread) -> None:
    sender = client.connection.sender("sessions")
    sender.send(text("a", properties=Properties(group_id="s")))
    receiver = client.connection.receiver("sessions", filter={Symbol("com.microsoft:session-filter"): "s"})
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    sender.send(text("b", properties=Properties(group_id="s")), state=TransactionalState(transaction))
    assert receiver.receive(timeout=0) == []
    client.discharge(transaction)
    assert [message.body for message in receiver.receive()] == [b"b"]
    assert broker.counters("sessions").active == 1


# --- $management ---


def scheduled(broker: BrokerThread, body: str, seconds: int) -> dict[str, Any]:
    moment = Timestamp(broker.clock() + seconds * 1000)
    message = text(body, message_annotations={Symbol("x-opt-scheduled-enqueue-time"): moment})
    return {"message-id": body, "message": message.encode()}


def test_messages_are_scheduled_when_that_is_committed(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    request = {"messages": [scheduled(broker, "later", 600), scheduled(broker, "much later", 1200)]}
    status, answer = client.ask("schedule-message", request, within=transaction)
    assert status == 200
    assert broker.counters().scheduled == 0
    client.discharge(transaction)
    assert broker.counters().scheduled == 2
    cancel = {"sequence-numbers": Array([answer["sequence-numbers"][1]], int)}
    assert client.ask("cancel-scheduled-message", cancel, within=None)[0] == 200
    broker.advance(601)
    assert bodies(client) == ["later"]
    assert broker.counters().scheduled == 0


def test_messages_scheduled_by_a_rolled_back_transaction_are_never_delivered(
    client: Client, broker: BrokerThread
) -> None:
    transaction = client.declare()
    status, answer = client.ask("schedule-message", {"messages": [scheduled(broker, "x", 60)]}, within=transaction)
    assert status == 200
    client.discharge(transaction, fail=True)
    broker.advance(61)
    assert broker.counters().scheduled == broker.counters().active == 0
    cancel = {"sequence-numbers": answer["sequence-numbers"]}
    assert client.ask("cancel-scheduled-message", cancel, within=None) == (404, Condition.MESSAGE_NOT_FOUND)


def test_a_message_that_becomes_due_before_the_commit_is_enqueued_with_it(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.ask("schedule-message", {"messages": [scheduled(broker, "due", 60)]}, within=transaction)
    broker.advance(61)
    assert broker.counters().active == 0
    client.discharge(transaction)
    assert bodies(client) == ["due"]


@pytest.mark.parametrize(
    ("status", "after"),
    [
        ("completed", {}),
        ("abandoned", {"active": 2}),
        ("suspended", {"letters": 2}),
        ("defered", {"deferred": 2}),
    ],
)
def test_dispositions_are_updated_when_that_is_committed(
    client: Client, broker: BrokerThread, status: str, after: dict[str, int]
) -> None:
    client.send("a", "b")
    receiver = client.connection.receiver("queue", credit=2)
    messages: list[ReceivedMessage] = []
    while len(messages) < 2:
        messages += receiver.receive(2)
    tokens = [message.lock_token for message in messages]
    request = {"disposition-status": status, "lock-tokens": Array(tokens, type(tokens[0]))}
    rolled_back = client.declare()
    assert client.ask("update-disposition", request, within=rolled_back) == (200, {})
    client.discharge(rolled_back, fail=True)
    assert state_of(broker) == {"active": 2}
    transaction = client.declare()
    assert client.ask("update-disposition", request, within=transaction) == (200, {})
    assert state_of(broker) == {"active": 2}
    client.discharge(transaction)
    assert state_of(broker) == after


def test_a_transaction_of_which_a_request_was_refused_cannot_be_committed(client: Client, broker: BrokerThread) -> None:
    client.send("a", "b")
    receiver = client.connection.receiver("queue", credit=2)
    messages: list[ReceivedMessage] = []
    while len(messages) < 2:
        messages += receiver.receive(2)
    tokens = [message.lock_token for message in messages]
    transaction = client.declare()
    client.send(*["x"] * (MAX_TRANSACTION_MESSAGES - 1), within=transaction)
    request = {"disposition-status": "completed", "lock-tokens": Array(tokens, type(tokens[0]))}
    answer = client.ask("update-disposition", request, within=transaction)
    assert answer == (403, Condition.RESOURCE_LIMIT_EXCEEDED)
    refused_commit(client, transaction)
    assert broker.counters().active == 2


def test_a_request_of_an_unknown_transaction_is_refused(client: Client, broker: BrokerThread) -> None:
    answer = client.ask("schedule-message", {"messages": [scheduled(broker, "x", 60)]}, within=b"unknown")
    assert answer == (400, Condition.TRANSACTION_UNKNOWN_ID)
    assert broker.counters().scheduled == 0


def test_an_operation_that_cannot_be_undone_is_no_part_of_a_transaction(client: Client) -> None:
    request = {"from-sequence-number": 1, "message-count": 1}
    answer = client.ask("peek-message", request, within=client.declare())
    assert answer == (400, Condition.NOT_ALLOWED)


# --- how else a transaction ends ---


def test_closing_the_coordinator_link_rolls_back(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    client.send("b", within=transaction)
    client.coordinator.close()
    with pytest.raises(SendRejected) as refused:
        client.send("c", within=transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID
    assert state_of(broker) == {"active": 1}


def test_a_coordinator_link_ends_its_own_transactions_only(client: Client, broker: BrokerThread) -> None:
    other = client.connection.sender(Coordinator())
    declared = other.send(Message(value=Declare()))
    mine = client.declare()
    client.send("a", within=mine)
    client.send("b", within=declared.txn_id)
    other.close()
    client.discharge(mine)
    assert bodies(client) == ["a"]
    assert broker.counters().active == 0


def test_dropping_the_connection_rolls_back(
    client: Client, clients: Callable[[], Client], broker: BrokerThread
) -> None:
    doomed = clients()
    client.send("a")
    receiver = doomed.connection.receiver("queue")
    messages = receiver.receive()
    transaction = doomed.declare()
    settle(receiver, messages, transaction, Accepted())
    doomed.send("b", within=transaction)
    doomed.connection._wire.close()  # as a crash would
    while broker.call(lambda: len(broker.broker.shells)) > 1:
        pass
    assert state_of(broker) == {"active": 1}
    assert broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes) == 0


def test_a_transaction_ends_after_two_minutes(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    broker.advance(TIME_LIMIT * 2)  # which counts from its first piece of work
    settle(receiver, messages, transaction, Accepted())
    client.send("b", within=transaction)
    broker.advance(TIME_LIMIT - 1)
    client.send("c", within=transaction)
    broker.advance(1)
    with pytest.raises(SendRejected) as refused:
        client.send("d", within=transaction)
    assert refused.value.condition == Condition.TRANSACTION_TIMEOUT
    with pytest.raises(SendRejected) as refused:
        client.discharge(transaction)
    assert refused.value.condition == Condition.TRANSACTION_TIMEOUT
    assert state_of(broker) == {"active": 1}
    with pytest.raises(SendRejected) as refused:
        client.discharge(transaction)
    assert refused.value.condition == Condition.TRANSACTION_UNKNOWN_ID


def test_a_transaction_that_was_discharged_in_time_does_not_end_again(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    client.discharge(transaction)
    broker.advance(TIME_LIMIT + 1)
    assert bodies(client) == ["a"]


# --- which entities it may touch ---


def refused_send(client: Client, *, to: str, within: bytes) -> str:
    with pytest.raises(SendRejected) as refused:
        client.send("x", to=to, within=within)
    return refused.value.condition


def test_a_transaction_belongs_to_the_first_entity_it_touches(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    client.new_session()
    client.send("b", to="QUEUE", within=transaction)  # from any session, in any spelling
    client.discharge(transaction)
    assert (broker.counters().active, broker.counters("other").active) == (2, 0)


def test_another_entity_is_refused_and_the_transaction_with_it(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    client.new_session()
    assert refused_send(client, to="other", within=transaction) == Condition.NOT_ALLOWED
    refused_commit(client, transaction)
    assert (broker.counters().active, broker.counters("other").active) == (0, 0)


def test_messages_of_two_entities_are_not_settled_together(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    client.send("b", to="other")
    first, second = client.connection.receiver("queue"), client.connection.receiver("other")
    transaction = client.declare()
    settle(first, first.receive(), transaction, Accepted())
    assert refused_settlement(second, second.receive(), transaction, Accepted()) == Condition.NOT_ALLOWED
    refused_commit(client, transaction)
    assert (broker.counters().active, broker.counters("other").active) == (1, 1)


def test_an_entity_and_its_dead_letters_are_one(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    receiver.reject(receiver.receive(), wait=True)
    letters = client.connection.receiver("queue/$deadletterqueue")
    transaction = client.declare()
    settle(letters, letters.receive(), transaction, Accepted())
    client.new_session()
    client.send("a again", within=transaction)
    client.discharge(transaction)
    assert state_of(broker) == {"active": 1}


def test_the_session_of_the_first_link_may_send_to_other_entities(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    transaction = client.declare()
    settle(receiver, receiver.receive(), transaction, Accepted())
    client.send("b", to="other", within=transaction)
    assert (broker.counters().active, broker.counters("other").active) == (1, 0)
    client.discharge(transaction)
    assert (broker.counters().active, broker.counters("other").active) == (0, 1)


def test_messages_are_sent_through_the_first_entity_to_another(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    client.new_session()
    sender = client.connection.sender("queue", properties={Symbol(VIA): "other"})
    assert sender.remote is not None
    assert (sender.remote.properties or {})[VIA] == "other"
    transaction = client.declare()
    settle(receiver, receiver.receive(), transaction, Accepted())
    sender.send(text("b"), state=TransactionalState(transaction))
    client.discharge(transaction)
    assert broker.counters().active == 0
    assert bodies(client, "other") == ["b"]


def test_a_sender_through_an_entity_sends_without_a_transaction_too(client: Client, broker: BrokerThread) -> None:
    client.connection.sender("queue", properties={Symbol(VIA): "other"}).send(text("a"))
    assert (broker.counters().active, broker.counters("other").active) == (0, 1)


@pytest.mark.parametrize(("address", "destination"), [("queue", "nowhere"), ("nowhere", "queue")])
def test_both_entities_of_a_sender_through_one_must_be_there(client: Client, address: str, destination: str) -> None:
    with pytest.raises(LinkClosed) as refused:
        Sender(client.connection, Target(address=address), {Symbol(VIA): destination}, 10)
    assert refused.value.condition == Condition.NOT_FOUND
    assert "'sb://peeklock/nowhere'" in refused.value.description


def test_a_destination_that_is_no_string_is_refused(client: Client) -> None:
    with pytest.raises(LinkClosed) as refused:
        client.connection.sender("queue", properties={Symbol(VIA): 7})
    assert refused.value.condition == Condition.ARGUMENT_ERROR


def test_sending_through_an_entity_needs_the_right_to_send_to_both(start_broker: StartBroker) -> None:
    def queue(name: str, *rights: Right) -> QueueDefinition:
        rule = AuthorizationRule(name="rule", primary_key=DEFAULT_KEY, rights=frozenset(rights))
        return QueueDefinition(name=name, authorization_rules=(rule,))

    queues = (queue("first", Right.SEND), queue("second", Right.SEND), queue("third", Right.LISTEN))
    broker = start_broker(namespace=NamespaceDefinition(queues=queues))
    endpoint = broker.connection_string.split(";")[0]
    address = f"{endpoint};SharedAccessKeyName=rule;SharedAccessKey={DEFAULT_KEY};UseDevelopmentEmulator=true;"
    with connect(address) as connection:
        connection.authenticate("first")
        with pytest.raises(LinkClosed) as refused:
            connection.sender("first", properties={Symbol(VIA): "second"})
        assert refused.value.condition == Condition.UNAUTHORIZED_ACCESS
        connection.authenticate("second", "third")
        connection.sender("first", properties={Symbol(VIA): "second"}).send(text("a"))
        for entity, destination in (("first", "third"), ("third", "first")):
            with pytest.raises(LinkClosed) as refused:
                connection.sender(entity, properties={Symbol(VIA): destination})
            assert refused.value.condition == Condition.UNAUTHORIZED_ACCESS
    assert broker.counters("second").active == 1


# --- limits ---


def test_a_transaction_may_have_a_hundred_messages(client: Client, broker: BrokerThread) -> None:
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    client.send(*["x"] * (MAX_TRANSACTION_MESSAGES - 1), within=transaction)
    settle(receiver, messages, transaction, Accepted())
    client.discharge(transaction)
    assert broker.counters().active == MAX_TRANSACTION_MESSAGES - 1


def test_a_transaction_has_at_most_a_hundred_messages(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send(*["x"] * MAX_TRANSACTION_MESSAGES, within=transaction)
    assert refused_send(client, to="queue", within=transaction) == Condition.RESOURCE_LIMIT_EXCEEDED
    refused_commit(client, transaction)
    assert broker.counters().active == 0


def test_the_messages_of_a_batch_count_one_by_one(client: Client, broker: BrokerThread) -> None:
    transaction = client.declare()
    client.send("a", within=transaction)
    batch = Message(data=[text("x").encode()] * MAX_TRANSACTION_MESSAGES).encode()
    sender = client.connection.sender("queue")
    with pytest.raises(SendRejected) as refused:
        sender.send(batch, message_format=0x80013700, state=TransactionalState(transaction))
    assert refused.value.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    client.discharge(transaction, fail=True)
    assert broker.counters().active == 0


def test_the_memory_of_open_transactions_is_limited(client: Client, broker: BrokerThread) -> None:
    def limit() -> None:
        for shell in broker.broker.shells:
            shell.peer.transactions.memory.limit = 100_000

    broker.call(limit)
    first, second = client.declare(), client.declare()
    client.send("x" * 60_000, within=first)
    client.send("x" * 60_000, within=second)
    assert refused_send(client, to="queue", within=first) == Condition.RESOURCE_LIMIT_EXCEEDED
    refused_commit(client, first)
    client.send("y", within=second)
    client.discharge(second)
    assert broker.counters().active == 2
    assert broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes) == 0


# --- the store ---


def test_a_discharge_is_confirmed_after_the_commit(start_broker: StartBroker) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    client = Client(broker)
    client.send("a")
    receiver = client.connection.receiver("queue")
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    client.send("b", "c", within=transaction)
    broker.call(store.hold)
    discharge = client.coordinator.post(Message(value=Discharge(transaction, False)))
    client.declare()  # when this is answered, the discharge has been heard
    assert not discharge.done
    assert broker.call(lambda: len(store.held or [])) == 1  # all of it in one commit
    assert broker.call(lambda: broker.broker.namespace.queue("queue").counters.active) == 1
    assert receiver.receive(timeout=0) == []
    broker.call(store.let_go)
    client.connection.wait(lambda: discharge.done, 10, "the discharge")
    assert isinstance(discharge.outcome, Accepted)
    got: list[ReceivedMessage] = []
    while len(got) < 2:
        got += receiver.receive(2)
    assert [message.body for message in got] == [b"b", b"c"]
    client.connection.close()


def test_a_commit_that_the_store_refuses_undoes_everything(start_broker: StartBroker) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    client = Client(broker)
    client.send("a")
    receiver = client.connection.receiver("queue", credit=1)
    messages = receiver.receive()
    transaction = client.declare()
    settle(receiver, messages, transaction, Accepted())
    client.send("b", within=transaction)
    broker.call(lambda: setattr(store, "fails", lambda changes: StoreFull("no room")))
    with pytest.raises(SendRejected) as refused:
        client.discharge(transaction)
    assert refused.value.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    broker.call(lambda: setattr(store, "fails", lambda changes: None))
    assert broker.counters().active == 1
    token = messages[0].lock_token  # still good
    complete = {"disposition-status": "completed", "lock-tokens": Array([token], type(token))}
    assert client.ask("update-disposition", complete, within=None)[0] == 200
    client.connection.close()


def test_committed_transactions_survive_a_power_cut_and_open_ones_do_not(served: ServedBroker) -> None:
    client = Client(served)
    committed, open_one = client.declare(), client.declare()
    client.send("a", "b", within=committed)
    client.send("c", within=open_one)
    client.discharge(committed)
    served.kill()
    served.start()
    client = Client(served)
    client.send("d")
    assert bodies(client, count=3) == ["a", "b", "d"]
    client.connection.close()

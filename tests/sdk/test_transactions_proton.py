"""Transactions through qpid-proton's reactor, a plain AMQP 1.0 client with SASL PLAIN."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Endpoint, Link, Message
from proton.handlers import TransactionalClientHandler
from proton.reactor import Container, LinkOption

from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, ServedBroker, StartBroker

WAIT = 10.0
TRANSACTIONAL_STATE = 0x34
"""What proton calls a delivery state it does not know."""


class SettlesSecond(LinkOption):
    """The receiver settles after the broker has (rcv-settle-mode second), as SDKs do."""

    def apply(self, link: Link) -> None:
        link.rcv_settle_mode = Link.RCV_SECOND


class Client(TransactionalClientHandler):
    """A connection whose reactor runs only while something is waited for."""

    def __init__(self, port: int) -> None:
        super().__init__(prefetch=0)
        self.arrived: deque[tuple[Any, Any]] = deque()
        self.ends: dict[Any, str] = {}
        """How each transaction ended."""
        self.declared: set[Any] = set()
        self.container: Any = Container(self)
        self.container.timeout = WAIT
        self.container.start()
        plain: dict[str, Any] = {"user": DEFAULT_KEY_NAME, "password": DEFAULT_KEY, "allowed_mechs": "PLAIN"}
        self.connection: Any = self.container.connect(
            f"amqp://127.0.0.1:{port}", allow_insecure_mechs=True, reconnect=False, **plain
        )
        self.wait(lambda: self.connection.state & Endpoint.REMOTE_ACTIVE)

    def wait(self, done: Any) -> None:
        while not done():
            assert self.container.process(), "the connection ended"

    def close(self) -> None:
        self.connection.close()
        self.container.timeout = 0.1
        while self.container.process():
            pass
        self.container.stop()

    def sender(self, address: str = "queue") -> Any:
        link = self.container.create_sender(self.connection, address)
        self.wait(lambda: link.credit > 0)
        return link

    def receiver(self, address: str = "queue", credit: int = 10) -> Any:
        link = self.container.create_receiver(self.connection, address, options=SettlesSecond())
        link.flow(credit)
        return link

    def receive(self) -> tuple[Any, Any]:
        """The next message and its delivery."""
        self.wait(lambda: self.arrived)
        return self.arrived.popleft()

    def declare(self, **options: Any) -> Any:
        transaction = self.container.declare_transaction(self.connection, handler=self, **options)
        self.wait(lambda: transaction in self.declared)
        return transaction

    def end(self, transaction: Any, *, abort: bool = False) -> str:
        if abort:
            transaction.abort()
        else:
            transaction.commit()
        self.wait(lambda: transaction in self.ends)
        return self.ends.pop(transaction)

    def settled(self, *deliveries: Any) -> None:
        self.wait(lambda: all(delivery.settled for delivery in deliveries))

    # --- what the reactor says ---

    def on_message(self, event: Any) -> None:
        self.arrived.append((event.message, event.delivery))

    def on_transaction_declared(self, event: Any) -> None:
        self.declared.add(event.transaction)

    def on_transaction_committed(self, event: Any) -> None:
        self.ends[event.transaction] = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.ends[event.transaction] = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.ends[event.transaction] = event.delivery.remote.condition.name


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", lock_duration_ms=60_000), QueueDefinition(name="other"))


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[Client]:
    client = Client(broker.broker.port)
    yield client
    client.close()


def put(client: Client, *bodies: str, address: str = "queue") -> None:
    sender = client.sender(address)
    deliveries = [sender.send(Message(body=body, durable=True)) for body in bodies]
    client.settled(*deliveries)
    sender.close()


def test_sends_of_a_committed_transaction_arrive_together(client: Client, broker: BrokerThread) -> None:
    sender = client.sender()
    transaction = client.declare()
    deliveries = [transaction.send(sender, Message(body=body, durable=True)) for body in "abc"]
    client.settled(*deliveries)
    assert {delivery.remote_state for delivery in deliveries} == {TRANSACTIONAL_STATE}
    assert broker.counters().active == 0
    assert client.end(transaction) == "committed"
    client.receiver()
    assert [client.receive()[0].body for _ in range(3)] == ["a", "b", "c"]


def test_sends_of_an_aborted_transaction_never_arrive(client: Client, broker: BrokerThread) -> None:
    sender = client.sender()
    transaction = client.declare()
    client.settled(transaction.send(sender, Message(body="never", durable=True)))
    assert client.end(transaction, abort=True) == "aborted"
    assert broker.counters().active == 0


def test_nothing_needs_to_be_waited_for_before_the_commit(client: Client, broker: BrokerThread) -> None:
    sender = client.sender()
    transaction = client.declare()
    for number in range(20):
        transaction.send(sender, Message(body=number, durable=True))
    assert client.end(transaction) == "committed"
    assert broker.counters().active == 20


def test_a_message_is_accepted_and_an_answer_sent_in_one_transaction(client: Client, broker: BrokerThread) -> None:
    put(client, "question")
    client.receiver()
    sender = client.sender("other")
    transaction = client.declare()
    message, delivery = client.receive()
    transaction.accept(delivery)
    transaction.send(sender, Message(body=f"answer to the {message.body}", durable=True))
    client.settled(delivery)
    assert delivery.remote_state == TRANSACTIONAL_STATE
    assert (broker.counters().active, broker.counters("other").active) == (1, 0)
    assert client.end(transaction) == "committed"
    assert (broker.counters().active, broker.counters("other").active) == (0, 1)
    client.receiver("other")
    assert client.receive()[0].body == "answer to the question"


def test_an_aborted_acceptance_leaves_the_message_locked_until_its_time(client: Client, broker: BrokerThread) -> None:
    put(client, "again")
    client.receiver()
    sender = client.sender("other")
    transaction = client.declare()
    _, delivery = client.receive()
    transaction.accept(delivery)
    transaction.send(sender, Message(body="never", durable=True))
    assert client.end(transaction, abort=True) == "aborted"
    assert (broker.counters().active, broker.counters("other").active) == (1, 0)
    broker.advance(61)
    message, _ = client.receive()
    assert (message.body, message.delivery_count) == ("again", 1)


def test_an_acceptance_may_be_settled_before_the_discharge(client: Client, broker: BrokerThread) -> None:
    put(client, "a")
    client.receiver()
    transaction = client.declare(settle_before_discharge=True)
    _, delivery = client.receive()
    transaction.accept(delivery)
    assert client.end(transaction) == "committed"
    assert broker.counters().active == 0


def test_rolling_back_a_settled_acceptance_makes_the_message_active_at_once(
    client: Client, broker: BrokerThread
) -> None:
    put(client, "again")
    client.receiver()
    transaction = client.declare(settle_before_discharge=True)
    _, delivery = client.receive()
    transaction.accept(delivery)
    assert client.end(transaction, abort=True) == "aborted"
    message, _ = client.receive()
    assert (message.body, message.delivery_count) == ("again", 0)


def test_a_commit_with_a_lost_lock_fails(client: Client, broker: BrokerThread) -> None:
    put(client, "slow")
    client.receiver(credit=1)
    sender = client.sender()
    transaction = client.declare()
    _, delivery = client.receive()
    transaction.accept(delivery)
    client.settled(transaction.send(sender, Message(body="never", durable=True)))
    broker.advance(61)
    assert client.end(transaction) == "amqp:transaction:rollback"
    assert broker.counters().active == 1


def test_many_transactions_are_in_flight_at_once(client: Client, broker: BrokerThread) -> None:
    sender = client.sender()
    transactions = [client.declare() for _ in range(50)]
    for _ in range(2):
        for number, transaction in enumerate(transactions):
            transaction.send(sender, Message(body=number, durable=True))
    for number, transaction in enumerate(transactions):
        if number % 5:
            transaction.commit()
        else:
            transaction.abort()
    client.wait(lambda: len(client.ends) == 50)
    assert sorted(client.ends.values()) == ["aborted"] * 10 + ["committed"] * 40
    assert broker.counters().active == 80


def test_closing_a_connection_rolls_back_its_transactions(client: Client, broker: BrokerThread) -> None:
    doomed = Client(broker.broker.port)
    transaction = doomed.declare()
    doomed.settled(transaction.send(doomed.sender(), Message(body="never", durable=True)))
    doomed.close()
    put(client, "last")
    assert broker.counters().active == 1


def test_a_committed_transaction_survives_a_power_cut(served: ServedBroker) -> None:
    client = Client(served.port)
    put(client, "question")
    client.receiver()
    sender = client.sender()
    transaction = client.declare()
    _, delivery = client.receive()
    transaction.accept(delivery)
    transaction.send(sender, Message(body="answer", durable=True))
    assert client.end(transaction) == "committed"
    served.kill()
    served.start()
    again = Client(served.port)
    put(again, "end")
    again.receiver()
    assert [again.receive()[0].body for _ in range(2)] == ["answer", "end"]
    again.close()

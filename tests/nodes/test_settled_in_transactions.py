"""Deliveries that a receiver settles on its side in a transaction: after a rollback it cannot settle them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.world import MINUTE, World, session_queue
from nodes.wire import Wire, frame
from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted, Error, Modified, Rejected, Released
from peeklock.amqp.performatives import Detach, Disposition, End, Source
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.amqp.types import Symbol
from peeklock.entities.definitions import QueueDefinition


class Client(Wire):
    """A client with a coordinator link, which receives from one queue."""

    def __init__(self, world: World, path: str = "q", **source: Any) -> None:
        super().__init__(world)
        self.coordinator = self.attach(role=False, source=Source(), target=Coordinator())
        self._queue = self.receiver(path, **source)

    def declare(self) -> bytes:
        declared = self.send(self.coordinator, Message(value=Declare()).encode())
        assert isinstance(declared, Declared)
        return declared.txn_id

    def discharge(self, transaction: bytes, *, fail: bool) -> Any:
        return self.send(self.coordinator, Message(value=Discharge(transaction, fail)).encode())

    def deliveries(self) -> list[tuple[int, str, int]]:
        """Return the received deliveries: ids, bodies and delivery counts."""
        found = [(id, Message.decode(payload)) for id, payload in self.received(self._queue)]
        return [(id, each.body.decode(), each.header.delivery_count if each.header else 0) for id, each in found]

    def settle(self, id: int, transaction: bytes, outcome: Any = None, *, settled: bool = True) -> None:
        state = TransactionalState(transaction, outcome or Accepted())
        self.send_bytes(frame(Disposition(role=True, first=id, settled=settled, state=state)))


@pytest.fixture
def world() -> World:
    world = World(QueueDefinition(name="q", lock_duration_ms=5 * MINUTE), session_queue("s"))
    world.send("a")
    return world


ROLLBACKS: dict[str, Callable[[Client, bytes], object]] = {
    "asked for": lambda client, transaction: client.discharge(transaction, fail=True),
    "a coordinator that is closed": lambda client, transaction: client.send_bytes(
        frame(Detach(handle=client.coordinator, closed=True))
    ),
    "time-out": lambda client, transaction: (client.world.advance(2 * MINUTE), client.read_output()),
}


@pytest.mark.parametrize("rollback", ROLLBACKS)
def test_a_rollback_releases_a_settled_message_at_once(rollback: str, world: World) -> None:
    client = Client(world)
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction)
    assert client.deliveries() == []
    ROLLBACKS[rollback](client, transaction)
    assert [found[1:] for found in client.deliveries()] == [("a", 0)]
    world.check()


def test_a_message_that_was_not_settled_stays_locked_after_a_rollback(world: World) -> None:
    client = Client(world, default_outcome=Modified(delivery_failed=True))
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction, settled=False)
    client.discharge(transaction, fail=True)
    assert client.deliveries() == []
    assert len(world.queue().locks.by_number) == 1


def test_a_settled_message_is_removed_after_the_commit(world: World) -> None:
    client = Client(world)
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction)
    assert isinstance(client.discharge(transaction, fail=False), Accepted)
    assert (client.deliveries(), world.bodies()) == ([], [])


WHY = Error(condition=Symbol("x:why"), description="because")


@pytest.mark.parametrize(
    ("outcome", "again", "dead"),
    [
        (None, [("a", 0)], []),
        (Released(), [("a", 0)], []),
        (Modified(delivery_failed=True), [("a", 1)], []),
        (Modified(undeliverable_here=True), [], []),
        (Rejected(WHY), [], ["a"]),
        (Accepted(), [("a", 0)], []),
        (Rejected(Error(condition=Symbol("x"), info={Symbol("DeadLetterReason"): 7})), [("a", 0)], []),
    ],
    ids=["none", "released", "modified", "deferred", "rejected", "accepted", "one that cannot be"],
)
def test_a_rollback_applies_the_default_outcome_of_the_source(
    outcome: Any, again: list[tuple[str, int]], dead: list[str], world: World
) -> None:
    client = Client(world, default_outcome=outcome)
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction)
    client.discharge(transaction, fail=True)
    assert [found[1:] for found in client.deliveries()] == again
    assert world.bodies("q/$DeadLetterQueue") == dead
    if dead:
        (letter,) = world.stored("q/$DeadLetterQueue")
        assert b"x:why" in letter.payload
    assert world.queue().counters.deferred == int(not again and not dead)
    world.check()


def test_a_message_that_was_settled_in_no_transaction_is_released(world: World) -> None:
    client = Client(world)
    ((id, _, _),) = client.deliveries()
    client.settle(id, b"never declared")
    assert [found[1:] for found in client.deliveries()] == [("a", 0)]
    world.check()


def test_a_settlement_that_the_transaction_refuses_releases_its_message(world: World) -> None:
    client = Client(world)
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction, Released())
    assert [found[1:] for found in client.deliveries()] == [("a", 0)]
    assert isinstance(client.discharge(transaction, fail=False), Rejected)
    assert world.bodies() == ["a"]


def test_a_session_continues_with_messages_that_a_rollback_released(world: World) -> None:
    world.send("one", "two", to="s", session_id="id")
    client = Client(world, "s", filter={Symbol("com.microsoft:session-filter"): "id"})
    (first, _, _), (second, _, _) = client.deliveries()
    transaction = client.declare()
    client.settle(first, transaction)
    client.settle(second, transaction)
    client.discharge(transaction, fail=True)
    assert [body for _, body, _ in client.deliveries()] == ["one", "two"]
    world.check()


def test_the_messages_of_a_client_that_left_are_released(world: World) -> None:
    client = Client(world, default_outcome=Modified(delivery_failed=True))
    ((id, _, _),) = client.deliveries()
    transaction = client.declare()
    client.settle(id, transaction)
    client.send_bytes(frame(End()))
    assert [found[1:] for found in Client(world).deliveries()] == [("a", 1)]
    world.check()

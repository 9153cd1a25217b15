"""Transactions: all work in one commit, or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from broker.world import (
    MINUTE,
    SECOND,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    incoming,
    session_queue,
    settlement,
)
from peeklock.broker.accounts import Accounts
from peeklock.broker.errors import (
    BrokerError,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimedOut,
    UnknownTransaction,
)
from peeklock.broker.locks import Lock
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.transactions import (
    Scope,
    Transactions,
    transaction_accounts,
)
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import (
    MAX_ALL_TRANSACTION_BYTES,
    MAX_OPEN_TRANSACTIONS,
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_MESSAGES,
)
from peeklock.store.base import StoreError

SESSION = object()
"""An AMQP session."""


def ignore(error: BrokerError | None) -> None:
    assert error is None


class Connection:
    """The transactions of a client on one connection."""

    def __init__(self, world: World, accounts: Accounts | None = None, rule: str = "") -> None:
        self.world = world
        self.transactions = Transactions(world.namespace.journal, world.namespace.agenda, accounts)
        self.transactions.memory.join(rule)

    def declare(self) -> bytes:
        return self.transactions.declare()

    def send(self, id: bytes, *bodies: str, to: str = "q", session: Any = SESSION, **fields: Any) -> None:
        queue = self.world.namespace.queue(to)
        self.transactions.get(id).send(queue, [incoming(body, **fields) for body in bodies], Scope(to, session))

    def settle(self, id: bytes, how: str, *locks: Lock, path: str = "q", session: Any = SESSION) -> None:
        queue: MessageQueue = self.world.namespace.queue(path)
        self.transactions.get(id).settle(queue.settlements, locks, settlement(how), Scope(path, session))

    def schedule(self, id: bytes, *bodies: str, after: int = MINUTE) -> list[int]:
        messages = [incoming(body, at=self.world.clock() + after) for body in bodies]
        return self.transactions.get(id).schedule(self.world.queue(), messages, Scope("q", SESSION))

    def discharge(self, id: bytes, fail: bool = False) -> BrokerError | None:
        outcomes: list[BrokerError | None] = []
        self.transactions.discharge(id, fail=fail, done=outcomes.append)
        self.world.run()
        assert len(outcomes) == 1
        return outcomes[0]


def counts(world: World, path: str = "q") -> tuple[int, int, int]:
    counters = world.namespace.queue(path).counters
    return counters.active, counters.deferred, counters.scheduled


# --- commit ---


def test_messages_of_a_transaction_are_active_after_the_commit_and_not_before() -> None:
    world = World()
    connection = Connection(world)
    receiver = Receiver(world, world.queue())
    id = connection.declare()
    connection.send(id, "a", "b")
    connection.send(id, "c")
    world.run()
    assert receiver.got == []
    assert counts(world) == (0, 0, 0)
    assert connection.discharge(id) is None
    assert receiver.bodies == ["a", "b", "c"]


def test_everything_of_a_transaction_is_in_one_commit() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b", "c", "d")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    for how, lock in zip(("complete", "abandon", "defer", "dead_letter"), receiver.locks, strict=True):
        connection.settle(id, how, lock)
    connection.send(id, "e")
    connection.schedule(id, "f")
    store.held = []
    outcomes: list[BrokerError | None] = []
    connection.transactions.discharge(id, fail=False, done=outcomes.append)
    world.run()
    assert len(store.held) == 1
    assert outcomes == []
    store.release_commits()
    world.run()
    assert outcomes == [None]
    assert counts(world) == (2, 1, 1)  # abandoned and sent; deferred; scheduled
    assert counts(world, "q/$DeadLetterQueue") == (1, 0, 0)


def test_a_commit_of_a_turn_with_other_work_fails_only_with_all_of_its_own() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    connection.settle(id, "complete", receiver.locks[0])
    store.fails = lambda changes: StoreError("not now")
    assert connection.discharge(id) is not None
    store.fails = lambda changes: None
    assert counts(world) == (1, 0, 0)
    world.queue().settlements.complete(receiver.locks[0], ignore)  # still locked
    world.run()
    assert counts(world) == (0, 0, 0)
    assert world.queue().counters.size_in_bytes == 0
    assert isinstance(_failure(connection, id), UnknownTransaction)


def _failure(connection: Connection, id: bytes) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        connection.transactions.get(id)
    return caught.value


def test_an_empty_transaction_can_be_discharged_both_ways() -> None:
    connection = Connection(World())
    assert connection.discharge(connection.declare()) is None
    assert connection.discharge(connection.declare(), fail=True) is None


# --- rollback ---


def test_a_rollback_discards_sent_messages_and_keeps_settled_ones_locked() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    connection.schedule(id, "c")
    connection.settle(id, "complete", receiver.locks[0])
    assert connection.discharge(id, fail=True) is None
    assert counts(world) == (1, 0, 0)
    assert receiver.bodies == ["a"]
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.run()
    assert counts(world) == (0, 0, 0)


def commit_fails(connection: Connection, id: bytes) -> None:
    connection.transactions.mark_rollback_only(id, QuotaExceeded("too much"))
    assert isinstance(connection.discharge(id), TransactionRolledBack)


def store_fails(connection: Connection, id: bytes) -> None:
    store = connection.world.store
    assert isinstance(store, FlakyStore)
    store.fails = lambda changes: StoreError("not now")
    assert connection.discharge(id) is not None
    store.fails = lambda changes: None


def time_passes(connection: Connection, id: bytes) -> None:
    connection.world.advance(2 * MINUTE)


ROLLBACKS: dict[str, Callable[[Connection, bytes], object]] = {
    "asked for": lambda connection, id: connection.discharge(id, fail=True),
    "time-out": time_passes,
    "a client that left": lambda connection, id: connection.transactions.forget([id]),
    "a commit that fails": commit_fails,
    "a store that fails": store_fails,
}


@pytest.mark.parametrize("rollback", ROLLBACKS)
def test_a_rollback_unlocks_messages_settled_by_the_receiver_and_keeps_others_locked(rollback: str) -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=5 * MINUTE), store=FlakyStore())
    world.send("a", "b")
    receiver = Receiver(world, world.queue(), credit=2)
    connection = Connection(world)
    id = connection.declare()
    queue = world.queue()
    first, second = receiver.locks
    connection.transactions.get(id).settle(
        queue.settlements, [first], settlement("complete"), Scope("q", SESSION), queue.settlements.release
    )
    connection.settle(id, "complete", second)
    receiver.more(10)
    ROLLBACKS[rollback](connection, id)
    world.run()
    assert receiver.bodies == ["a", "b", "a"]
    assert [message.delivery_count for message in receiver.got] == [0, 0, 0]
    assert queue.locks.find([second.tag]) == [second]
    with pytest.raises(MessageLockLost):
        queue.locks.find([first.tag])
    world.check()


def test_a_commit_gives_nothing_back() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    connection = Connection(world)
    id = connection.declare()
    queue = world.queue()
    given_back: list[Lock] = []
    connection.transactions.get(id).settle(
        queue.settlements, receiver.locks, settlement("complete"), Scope("q", SESSION), given_back.append
    )
    assert connection.discharge(id) is None
    assert (counts(world), given_back) == ((0, 0, 0), [])


def test_a_discharged_transaction_is_unknown() -> None:
    connection = Connection(World())
    for fail in (True, False):
        id = connection.declare()
        connection.discharge(id, fail=fail)
        with pytest.raises(UnknownTransaction):
            connection.send(id, "a")
        with pytest.raises(UnknownTransaction):
            connection.discharge(id)


def test_a_transaction_of_another_connection_is_unknown() -> None:
    world = World()
    id = Connection(world).declare()
    with pytest.raises(UnknownTransaction):
        Connection(world).send(id, "a")
    with pytest.raises(UnknownTransaction):
        Connection(world).transactions.get(None)


def test_transactions_of_a_client_that_left_are_rolled_back() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    ids = [connection.declare(), connection.declare()]
    connection.send(ids[0], "b")
    connection.settle(ids[1], "complete", receiver.locks[0])
    connection.transactions.forget([*ids, b"never heard of"])
    world.run()
    assert counts(world) == (1, 0, 0)
    assert world.namespace.journal.unsaved_bytes == 0
    world.advance(10 * MINUTE)
    with pytest.raises(UnknownTransaction):
        connection.discharge(ids[0])


def test_an_undischarged_transaction_has_no_effect_after_a_restart() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    connection.schedule(id, "c")
    connection.settle(id, "complete", receiver.locks[0])
    world = world.restarted()
    world.advance(MINUTE)
    assert Receiver(world, world.queue()).bodies == ["a"]
    assert counts(world) == (1, 0, 0)


# --- what goes wrong before the commit ---


def test_a_lock_that_was_lost_meanwhile_fails_the_commit_and_nothing_happens() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=30 * SECOND))
    world.send("a", "b")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "c")
    connection.settle(id, "complete", *receiver.locks)
    receiver.credit = 0
    world.advance(20 * SECOND)
    world.queue().renew([receiver.locks[1]])
    world.advance(10 * SECOND)
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    assert counts(world) == (2, 0, 0)
    world.queue().settlements.complete(receiver.locks[1], ignore)
    world.run()
    receiver.more()
    assert receiver.bodies == ["a", "b", "a"]


def test_a_lock_that_expired_before_its_timer_ran_fails_the_commit() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    connection.settle(id, "complete", receiver.locks[0])
    world.clock.advance(MINUTE)
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    assert counts(world) == (1, 0, 0)


def test_a_session_that_was_lost_meanwhile_fails_the_commit() -> None:
    world = World(session_queue())
    world.send("1", to="s", session_id="a")
    receiver = SessionReceiver(world)
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "2", to="s", session_id="a")
    connection.settle(id, "complete", receiver.locks[0], path="s")
    receiver.close()
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    assert SessionReceiver(world).bodies == ["1"]


def test_a_message_settled_outside_while_it_is_enlisted_fails_the_commit() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    connection.settle(id, "defer", receiver.locks[0])
    store.held = []
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.run()
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    store.release_commits()
    world.run()
    assert counts(world) == (0, 0, 0)


def test_a_message_is_settled_once_in_a_transaction() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.settle(id, "complete", receiver.locks[0])
    with pytest.raises(MessageLockLost):
        connection.settle(id, "abandon", receiver.locks[0])
    assert connection.discharge(id) is None
    assert counts(world) == (0, 0, 0)


def test_a_message_that_is_being_settled_cannot_be_enlisted() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    store.held = []
    world.queue().settlements.complete(receiver.locks[0], ignore)
    with pytest.raises(MessageLockLost):
        connection.settle(id, "complete", receiver.locks[0])
    store.release_commits()
    world.run()
    assert connection.discharge(id) is None


def test_of_two_transactions_that_settle_one_message_the_first_wins() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    first, second = connection.declare(), connection.declare()
    connection.settle(first, "complete", receiver.locks[0])
    connection.settle(second, "complete", receiver.locks[0])
    connection.send(second, "b")
    assert connection.discharge(first) is None
    assert isinstance(connection.discharge(second), TransactionRolledBack)
    assert counts(world) == (0, 0, 0)


def test_an_entity_that_became_full_meanwhile_fails_the_commit() -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1024))
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "a")
    world.queue().counters.size_in_bytes = 1024 << 20
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    assert counts(world) == (0, 0, 0)


def test_a_change_that_cannot_be_staged_undoes_earlier_ones() -> None:
    world = World()
    world.send("a", "b")
    receiver = Receiver(world, world.queue())
    queue = world.queue()
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "c")
    connection.settle(id, "complete", receiver.locks[0])
    too_large = Settlement(Verdict.ABANDON, {"p": "x" * queue.max_message_bytes})
    connection.transactions.get(id).settle(
        queue.settlements,
        [receiver.locks[1]],
        too_large,
        Scope("q", SESSION),
    )
    assert isinstance(connection.discharge(id), TransactionRolledBack)
    assert counts(world) == (2, 0, 0)
    for lock in receiver.locks:
        queue.settlements.complete(lock, ignore)
    world.run()
    assert counts(world) == (0, 0, 0)
    assert queue.counters.size_in_bytes == 0


def test_a_transaction_with_an_unreported_failure_cannot_be_committed() -> None:
    world = World()
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "a")
    connection.transactions.get(id).mark_rollback_only(OperationNotAllowed("The second message was refused."))
    assert "second message" in str(connection.discharge(id))
    assert counts(world) == (0, 0, 0)


# --- limits ---


def test_a_transaction_ends_two_minutes_after_its_first_work() -> None:
    world = World()
    connection = Connection(world)
    id = connection.declare()
    world.advance(10 * MINUTE)
    connection.send(id, "a")
    world.advance(2 * MINUTE - 1)
    connection.send(id, "b")
    world.advance(1)
    with pytest.raises(TransactionTimedOut):
        connection.send(id, "c")
    with pytest.raises(TransactionTimedOut):
        connection.discharge(id)
    with pytest.raises(UnknownTransaction):
        connection.discharge(id)
    assert counts(world) == (0, 0, 0)
    assert world.namespace.journal.unsaved_bytes == 0


def test_a_discharge_after_the_time_out_is_refused() -> None:
    world = World()
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "a")
    world.advance(2 * MINUTE)
    with pytest.raises(TransactionTimedOut):
        connection.discharge(id, fail=True)


def test_a_transaction_may_have_a_hundred_messages() -> None:
    world = World()
    world.send("lent")
    receiver = Receiver(world, world.queue(), credit=1)
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, *map(str, range(MAX_TRANSACTION_MESSAGES - 1)))
    connection.settle(id, "complete", receiver.locks[0])
    with pytest.raises(QuotaExceeded):
        connection.send(id, "one more")
    with pytest.raises(QuotaExceeded):
        connection.schedule(id, "one more")
    assert connection.discharge(id) is None
    assert counts(world) == (MAX_TRANSACTION_MESSAGES - 1, 0, 0)


def test_a_message_that_was_refused_does_not_count() -> None:
    world = World(session_queue())
    connection = Connection(world)
    id = connection.declare()
    with pytest.raises(OperationNotAllowed):
        connection.send(id, *["no session"] * MAX_TRANSACTION_MESSAGES, to="s")
    connection.send(id, *["x"] * MAX_TRANSACTION_MESSAGES, to="s", session_id="a")
    assert connection.discharge(id) is None


def test_a_connection_has_so_many_transactions_open() -> None:
    connection = Connection(World())
    ids = [connection.declare() for _ in range(MAX_OPEN_TRANSACTIONS)]
    with pytest.raises(QuotaExceeded):
        connection.declare()
    connection.discharge(ids[0])
    connection.declare()


def test_open_transactions_hold_so_many_bytes() -> None:
    world = World()
    connection = Connection(world)
    ids = [connection.declare(), connection.declare()]
    connection.send(ids[0], "x" * MAX_TRANSACTION_BYTES)
    with pytest.raises(QuotaExceeded):
        connection.send(ids[1], "y")
    assert connection.transactions.memory.used >= MAX_TRANSACTION_BYTES
    assert world.namespace.journal.unsaved_bytes == 0  # those who send without transactions do not wait for it
    connection.discharge(ids[0], fail=True)
    assert connection.transactions.memory.used == 0
    connection.send(ids[1], "y")


def test_properties_that_settlements_add_are_held_too() -> None:
    world = World()
    connection = Connection(world)
    world.send("a")
    receiver = Receiver(world, world.queue())
    id = connection.declare()
    abandon = Settlement(Verdict.ABANDON, {"p": "x" * 10_000})
    scope = Scope("q", None)
    connection.transactions.get(id).settle(world.queue().settlements, receiver.locks, abandon, scope)
    assert connection.transactions.memory.used > 10_000
    connection.discharge(id)
    assert connection.transactions.memory.used == 0


def test_connections_that_use_much_memory_do_not_exclude_other_clients() -> None:
    world = World()
    accounts = transaction_accounts()
    greedy = [Connection(world, accounts, "root") for _ in range(8)]
    for connection in greedy:
        id = connection.declare()
        with suppress(QuotaExceeded):
            for _ in range(MAX_TRANSACTION_MESSAGES):
                connection.send(id, "x" * (1 << 20))
        assert connection.transactions.memory.is_full
    assert accounts.used <= 2 * MAX_ALL_TRANSACTION_BYTES
    assert world.send("plain") == [None]
    for modest in (Connection(world, accounts, "root"), Connection(world, accounts, "another")):
        id = modest.declare()
        modest.send(id, "x" * 100_000)
        modest.discharge(id)
    for connection in greedy:
        connection.transactions.forget(list(connection.transactions._open))
    assert accounts.used == 0


# --- scope ---


def two_queues() -> World:
    return World(QueueDefinition(name="q"), QueueDefinition(name="other"))


def test_a_transaction_belongs_to_the_entity_of_its_first_work() -> None:
    world = two_queues()
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "a")
    with pytest.raises(OperationNotAllowed, match=r"'q'.*'other'"):
        connection.send(id, "b", to="other", session=object())
    connection.send(id, "c", session=object())
    assert connection.discharge(id) is None
    assert (counts(world), counts(world, "other")) == ((2, 0, 0), (0, 0, 0))


def test_sends_of_the_same_session_may_go_elsewhere_and_commit_together() -> None:
    world = two_queues()
    world.send("a")
    receiver = Receiver(world, world.queue())
    connection = Connection(world)
    id = connection.declare()
    connection.settle(id, "complete", receiver.locks[0])
    connection.send(id, "b", to="other")
    assert connection.discharge(id) is None
    assert (counts(world), counts(world, "other")) == ((0, 0, 0), (1, 0, 0))


def test_settlements_stay_with_the_first_entity() -> None:
    world = two_queues()
    world.send("a", to="other")
    receiver = Receiver(world, world.queue("other"))
    connection = Connection(world)
    id = connection.declare()
    connection.send(id, "b")
    with pytest.raises(OperationNotAllowed):
        connection.settle(id, "complete", receiver.locks[0], path="other")
    assert connection.discharge(id) is None
    assert counts(world, "other") == (1, 0, 0)


# --- scheduling and interleaving ---


def test_scheduling_in_a_transaction_gives_numbers_that_can_be_cancelled_after_the_commit() -> None:
    world = World()
    connection = Connection(world)
    id = connection.declare()
    numbers = connection.schedule(id, "a", "b")
    world.send("c")
    assert connection.discharge(id) is None
    outcomes: list[BrokerError | None] = []
    world.queue().scheduled.cancel([numbers[0]], outcomes.append)
    world.run()
    assert outcomes == [None]
    world.advance(MINUTE)
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["c", "b"]
    assert len({*numbers, *receiver.numbers}) == 4


def test_a_message_that_became_due_before_the_commit_is_enqueued_after_it() -> None:
    world = World()
    connection = Connection(world)
    receiver = Receiver(world, world.queue())
    id = connection.declare()
    connection.schedule(id, "a", after=SECOND)
    world.advance(MINUTE)
    assert connection.discharge(id) is None
    assert receiver.bodies == ["a"]
    assert counts(world) == (1, 0, 0)


def test_a_message_with_a_number_from_before_the_commit_is_not_lost_behind_later_ones() -> None:
    world = World()
    connection = Connection(world)
    id = connection.declare()
    (number,) = connection.schedule(id, "a", after=-MINUTE)
    world.send("b")
    assert connection.discharge(id) is None
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["a", "b"]
    assert receiver.numbers[0] == number


def test_concurrent_transactions_are_independent() -> None:
    world = World()
    world.send("a", "b")
    receiver = Receiver(world, world.queue(), credit=2)
    connection = Connection(world)
    first, second, third = (connection.declare() for _ in range(3))
    connection.send(first, "1")
    connection.send(second, "2")
    connection.settle(second, "complete", receiver.locks[0])
    connection.send(third, "3")
    connection.settle(first, "complete", receiver.locks[1])
    connection.send(first, "4")
    assert connection.discharge(second) is None
    assert counts(world) == (2, 0, 0)
    assert connection.discharge(third, fail=True) is None
    assert connection.discharge(first) is None
    receiver.more()
    assert receiver.bodies[2:] == ["2", "1", "4"]


def test_a_transaction_in_a_session_completes_and_sends_in_it() -> None:
    world = World(session_queue())
    world.send("1", to="s", session_id="a")
    receiver = SessionReceiver(world)
    connection = Connection(world)
    id = connection.declare()
    connection.settle(id, "complete", receiver.locks[0], path="s")
    connection.send(id, "2", to="s", session_id="a")
    assert connection.discharge(id) is None
    assert receiver.bodies == ["1", "2"]
    assert counts(world, "s") == (1, 0, 0)

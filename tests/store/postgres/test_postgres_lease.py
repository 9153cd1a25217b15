"""The lease: reading, taking over, renewing and releasing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from threading import Barrier, Thread
from typing import Any

import pytest
from postgres_harness import query, take_over
from postgres_server import wait_until

from peeklock.store.postgres import lease
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.lease import Lease
from peeklock.store.postgres.store import PostgresStore

ADDRESS = "10.0.0.1:5671"


class Node:
    """A connection of a node, and its calls."""

    def __init__(self, engine: Engine, owner: str) -> None:
        self.engine = engine
        self.owner = owner
        self.connection = connect(engine, "lease")

    def read(self) -> Lease:
        return lease.read(self.connection, self.engine)

    def take_over(self, seen: Lease | None = None) -> int | None:
        return lease.take_over(self.connection, self.engine, seen or self.read(), self.owner, ADDRESS)

    def renew(self, epoch: int, **options: Any) -> bool:
        return lease.renew(self.connection, epoch, self.owner, **options)

    def release(self, epoch: int) -> bool:
        return lease.release(self.connection, self.engine, epoch, self.owner)


@pytest.fixture
def nodes(engine: Engine) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        first, second = Node(engine, "first"), Node(engine, "second")
        for node in first, second:
            stack.enter_context(node.connection)
        yield first, second


def test_a_new_namespace_has_no_owner(nodes: tuple[Node, Node]) -> None:
    assert nodes[0].read() == Lease(0, 0, None, None, False)


def test_a_take_over_begins_an_epoch(nodes: tuple[Node, Node], engine: Engine) -> None:
    first, second = nodes
    assert first.take_over() == 1
    assert second.read() == Lease(1, 1, "first", ADDRESS, True)
    assert query(engine, "SELECT epoch FROM fence") == [(1,)]


def test_only_one_of_two_nodes_that_saw_the_same_lease_takes_it_over(nodes: tuple[Node, Node]) -> None:
    for _ in range(5):
        seen = nodes[0].read()
        epochs: list[int | None] = []
        barrier = Barrier(2)

        def race(node: Node, seen: Lease = seen, epochs: list[Any] = epochs, barrier: Barrier = barrier) -> None:
            barrier.wait()
            epochs.append(node.take_over(seen))

        threads = [Thread(target=race, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(epochs, key=str) == [seen.epoch + 1, None]
        for node in nodes:  # the winner of the next round terminates the session of this one
            node.connection.close()
            node.connection = connect(node.engine, "lease")


def test_a_lease_that_was_renewed_meanwhile_is_not_taken_over(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    epoch = first.take_over()
    assert epoch is not None
    seen = second.read()
    assert first.renew(epoch)
    assert second.read().beat == seen.beat + 1
    assert second.take_over(seen) is None
    assert first.renew(epoch)


def test_a_renewal_can_change_the_address(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    epoch = first.take_over()
    assert epoch is not None
    assert first.renew(epoch, address="10.0.0.2:5671", pids=[1, 2])
    assert second.read().address == "10.0.0.2:5671"
    assert first.renew(epoch)
    assert second.read().address == "10.0.0.2:5671"


def test_a_node_that_lost_the_lease_neither_renews_nor_releases_it(nodes: tuple[Node, Node], engine: Engine) -> None:
    first, second = nodes
    old = first.take_over()
    assert old is not None
    new = second.take_over()
    with connect(engine, "test") as connection:
        for owner in "first", "second":
            assert not lease.renew(connection, old, owner)
            assert not lease.release(connection, engine, old, owner)
        assert new is not None
        assert not lease.renew(connection, new, "first")
    assert second.read() == Lease(2, 2, "second", ADDRESS, True)


def test_a_released_lease_has_no_owner_and_no_sessions(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    epoch = first.take_over()
    assert epoch is not None
    assert first.release(epoch)
    assert second.read() == Lease(1, 2, None, None, False)
    assert not first.renew(epoch)
    assert second.take_over() == 2


def test_the_sessions_of_the_holder_are_seen_until_they_end(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.take_over()
    assert second.read().has_sessions
    first.connection.close()
    wait_until(lambda: not second.read().has_sessions, "the session ends")


def test_a_take_over_terminates_the_sessions_of_earlier_epochs_only(engine: Engine) -> None:
    other = Engine(url=engine.url, schema=f"{engine.schema}0", replication="none")
    old = take_over(engine)
    with ExitStack() as stack:
        held, _, foreign = (
            stack.enter_context(closing(each))
            for each in (connect(engine, "write", old), connect(engine, "read", old), connect(other, "write", 0))
        )
        # A paused node, in the middle of a commit, has the fence locked.
        held.execute("BEGIN")
        held.execute("UPDATE fence SET last_commit = last_commit + 1")
        assert take_over(engine) == old + 1
        rows = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
        wait_until(lambda: query(engine, rows, f"{engine.prefix}{old}/") == [(0,)], "the sessions end")
        assert foreign.execute("SELECT 1").fetchone() == (1,)
    assert query(engine, "SELECT epoch, last_commit FROM fence") == [(old + 1, 0)]


def test_a_store_counts_as_sessions_of_its_epoch(nodes: tuple[Node, Node], engine: Engine) -> None:
    first, second = nodes
    epoch = first.take_over()
    assert epoch is not None
    store = PostgresStore(engine, epoch, lambda call: None)
    store.open()
    first.connection.close()
    assert second.read().has_sessions
    store.close()
    wait_until(lambda: not second.read().has_sessions, "the sessions end")

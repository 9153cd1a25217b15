"""The watermark of free disk space: what is refused below it, what is allowed, and when sends are accepted again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.world import SECOND, Receiver, World, incoming, topic
from peeklock.amqp.errors import Condition
from peeklock.broker.claims import Request
from peeklock.broker.errors import BrokerError, DiskFreeLow
from peeklock.broker.transactions import Scope, Transaction, Transactions
from peeklock.broker.watermark import Watermark
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import MAX_NUMBER, DiskSpace

MIB = 1 << 20
GIB = 1 << 30


class Disk:
    """A disk whose free space the test sets."""

    def __init__(self, free: int = 100 * GIB, total: int = 1000 * GIB) -> None:
        self.free = free
        self.total = total
        self.failure: OSError | None = None

    def __call__(self) -> DiskSpace:
        if self.failure is not None:
            raise self.failure
        return DiskSpace(self.free, self.total)


def watched(world: World, disk: Disk, low: int | None = None) -> Watermark:
    watermark = Watermark(world.namespace.journal, world.namespace.agenda, disk, low)
    watermark.start()
    return watermark


def new_transaction(world: World) -> Transaction:
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    return transactions.get(transactions.declare())


def refusal(send: Callable[[], object]) -> DiskFreeLow:
    with pytest.raises(DiskFreeLow) as caught:
        send()
    return caught.value


def test_sends_are_refused_below_the_watermark_and_accepted_again_well_above_it() -> None:
    world, disk = World(), Disk()
    watermark = watched(world, disk)
    world.send("first")
    disk.free = GIB - 1
    world.advance(SECOND)
    assert watermark.refuses
    failure = refusal(lambda: world.send("second"))
    assert failure.condition == Condition.SERVER_BUSY
    assert "1023 MiB" in str(failure)
    # A little above is not enough: senders would be refused and accepted in turn.
    disk.free = GIB + 100 * MIB
    world.advance(SECOND)
    refusal(lambda: world.send("third"))
    disk.free = GIB + 256 * MIB
    world.advance(SECOND)
    assert not watermark.refuses
    assert world.send("fourth") == [None]
    disk.free = GIB
    world.advance(SECOND)
    assert world.send("fifth") == [None]
    assert world.bodies() == ["first", "fourth", "fifth"]
    world.check()


def test_a_disk_that_is_full_at_the_start_refuses_from_the_start() -> None:
    world = World()
    watched(world, Disk(free=0))
    refusal(lambda: world.send("first"))


@pytest.mark.parametrize(("total", "low"), [(1000 * GIB, GIB), (10 * GIB, 512 * MIB)])
def test_by_default_it_is_a_gibibyte_or_a_twentieth_of_the_disk(total: int, low: int) -> None:
    world, disk = World(), Disk(free=low, total=total)
    watermark = watched(world, disk)
    assert (watermark.low_bytes, watermark.refuses) == (low, False)
    disk.free -= 1
    world.advance(SECOND)
    assert watermark.refuses


def test_another_one_can_be_set_and_none() -> None:
    world, disk = World(), Disk(free=0)
    watermark = watched(world, disk, low=0)
    assert (watermark.refuses, watermark.free_bytes) == (False, 0)
    assert world.send("first") == [None]
    disk.free = 20 * MIB
    assert watched(world, disk, low=21 * MIB).refuses


def test_a_disk_whose_free_space_is_unknown_changes_nothing() -> None:
    world, disk = World(), Disk()
    watermark = watched(world, disk)
    disk.failure = OSError("gone")
    world.advance(SECOND)
    assert (watermark.refuses, watermark.free_bytes) == (False, None)
    disk.failure, disk.free = None, 0
    world.advance(SECOND)
    assert watermark.refuses


# --- what is refused, and what goes on ---


def test_operations_that_grow_the_store_are_refused() -> None:
    world = World(QueueDefinition(name="q"), topic("t", "s"))
    watched(world, Disk(free=0))
    transaction = new_transaction(world)
    later = incoming("later", at=world.clock() + 60 * SECOND)
    refusal(lambda: world.send("to a topic", to="t"))
    refusal(lambda: world.send_together(incoming("a"), incoming("b")))
    refusal(lambda: world.send_together(later))
    refusal(lambda: transaction.send(world.queue(), [incoming("in a transaction")], Scope("q", None)))
    refusal(lambda: transaction.schedule(world.queue(), [later], Scope("q", None)))
    assert world.bodies() == []
    world.check()


def test_receiving_settling_moving_and_deleting_continue() -> None:
    world = World(
        QueueDefinition(name="q"), QueueDefinition(name="source", forward_to="target"), QueueDefinition(name="target")
    )
    disk = Disk()
    watched(world, disk)
    world.send("completed", "dead-lettered", "abandoned")
    world.send("due", at=world.clock() + 60 * SECOND)
    world.store.held = []  # type: ignore[attr-defined]
    world.send("on its way", to="source")
    disk.free = 0
    world.advance(SECOND)
    world.store.release_commits()  # type: ignore[attr-defined]
    world.run()
    assert world.bodies("target") == ["on its way"]
    receiver = Receiver(world, world.queue(), credit=3)
    completed, dead_lettered, abandoned = receiver.locks
    world.settle(world.queue().settlements.complete, completed)
    world.settle(world.queue().settlements.dead_letter, dead_lettered)
    world.settle(world.queue().settlements.abandon, abandoned)
    assert world.bodies("q/$DeadLetterQueue") == ["dead-lettered"]
    world.advance(60 * SECOND)
    receiver.more()
    assert receiver.bodies[-2:] == ["abandoned", "due"]
    assert world.administer(world.administration.delete_queue, "q") is None


def test_messages_are_claimed_and_removed() -> None:
    world = World()
    disk = Disk()
    watched(world, disk)
    world.send("one", "two")
    disk.free = 0
    world.advance(SECOND)
    claims = world.queue().claims
    answers: list[Any] = []
    request = Request(
        bytes(16),
        "mine",
        count=2,
        max_bytes=1000,
        through=MAX_NUMBER,
        sessions=1,
        wait_ms=0,
        linger_ms=0,
        done=answers.append,
    )
    claims.claim(request, bytes(16), object())
    world.run()
    assert [claim.count for claim in answers] == [2]
    claims.remove("mine", bytes(16), None, answers.append)
    world.run()
    assert answers[1:] == [2]
    assert world.bodies() == []


def test_a_transaction_that_was_begun_before_is_committed() -> None:
    world, disk = World(), Disk()
    watched(world, disk)
    transaction = new_transaction(world)
    transaction.send(world.queue(), [incoming("begun before")], Scope("q", None))
    disk.free = 0
    world.advance(SECOND)
    outcomes: list[BrokerError | None] = []
    transaction.commit(outcomes.append)
    world.run()
    assert (outcomes, world.bodies()) == ([None], ["begun before"])

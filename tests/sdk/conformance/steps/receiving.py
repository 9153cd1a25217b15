"""Receiving in both modes, waiting, competing receivers, prefetching, peeking."""

from __future__ import annotations

from conformance.clients import bodies, equal, refused
from conformance.steps import scenario
from conformance.world import World


@scenario("receive and delete")
def deletes(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b", "c")
    receiver = bus.receiver("queue", deletes=True)
    equal(bodies(receiver.receive(3)), ["a", "b", "c"])
    equal(world.active(), 0)


@scenario("receive with peek-lock")
def locks(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a")
    receiver = bus.receiver("queue")
    message = receiver.one()
    equal(world.active(), 1)
    receiver.complete(message)
    equal(world.active(), 0)


@scenario("receive in several batches")
def several(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(30)]
    bus.send("queue", *numbers)
    receiver = bus.receiver("queue")
    found = [body for size in (1, 10, 4, 15) for body in receiver.take(size)]
    equal(found, numbers)
    equal(world.active(), 0)


@scenario("request more messages than the queue has")
def more(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b")
    receiver = bus.receiver("queue")
    found: list[str] = []
    while len(found) < 2:
        some = receiver.ask(50, wait=5)
        if not some:
            raise AssertionError(f"only {found} came")
        for message in some:
            receiver.complete(message)
        found += bodies(some)
    equal(found, ["a", "b"])


@scenario("wait for a message that is sent later")
def wait(world: World) -> None:
    bus = world.connect()
    receiver = bus.receiver("queue")
    asking = receiver.asking(1)
    world.until(lambda: world.receivers_that_wait() == 1, "the receiver waits")
    bus.send("queue", "late")
    messages = receiver.asked(asking)
    equal(bodies(messages), ["late"])
    receiver.complete(messages[0])


@scenario("wait at an empty queue")
def in_vain(world: World) -> None:
    receiver = world.connect().receiver("queue")
    equal(receiver.ask(1, wait=1), [])
    world.connect().send("queue", "later")
    equal(receiver.take(), ["later"])


@scenario("share a queue between two receivers")
def share(world: World) -> None:
    one, two = world.connect(), world.connect()
    one.send("queue", *(f"m{number}" for number in range(10)))
    halves = one.receiver("queue").receive(5) + two.receiver("queue").receive(5)
    equal(len(set(bodies(halves))), 10)
    equal({message.delivery_count for message in halves}, {0})


@scenario("close a receiver that has locked a message")
def close_holding(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "held")
    receiver = bus.receiver("queue")
    receiver.one()
    receiver.close()
    other = bus.receiver("queue")
    equal(other.ask(1, wait=1), [])
    world.advance(61)
    again = other.one()
    equal((again.body, again.delivery_count), ("held", 1))


@scenario("prefetch messages")
def prefetch(world: World) -> None:
    bus = world.connect()
    bus.send("queue", *(f"m{number}" for number in range(20)))
    receiver = bus.receiver("queue", prefetch=10)
    equal(receiver.take(5), [f"m{number}" for number in range(5)])
    world.until(lambda: world.locked() > 0, "more than was asked for is brought")
    receiver.close()
    world.advance(61)
    rest = bus.receiver("queue").receive(15)
    equal(sorted(bodies(rest)), sorted(f"m{number}" for number in range(5, 20)))


@scenario("receive from a missing queue")
def not_there(world: World) -> None:
    bus = world.connect()
    with refused(world.kind("no-entity")):
        bus.receiver("nowhere").ask(1)


@scenario("receive from a disabled queue")
def disabled(world: World) -> None:
    bus = world.connect()
    with refused("disabled"):
        bus.receiver("closed").ask(1)


@scenario("receive from a queue that is disabled for receiving")
def disabled_for_receiving(world: World) -> None:
    bus = world.connect()
    bus.send("no-receiving", "kept")
    with refused("disabled"):
        bus.receiver("no-receiving").ask(1)
    equal(world.active("no-receiving"), 1)


# --- peeking ---


@scenario("peek")
def peek(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b")
    receiver = bus.receiver("queue")
    equal(bodies(receiver.peek()), ["a", "b"])
    messages = receiver.receive(2)
    equal([message.delivery_count for message in messages], [0, 0])


@scenario("peek repeatedly")
def peek_on(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(25)]
    bus.sender("queue").send(*numbers, batch=True)
    receiver = bus.receiver("queue")
    pages = [bodies(receiver.peek(size)) for size in (1, 10, 10, 10, 10)]
    equal([len(page) for page in pages], [1, 10, 10, 4, 0])
    equal([body for page in pages for body in page], numbers)


@scenario("peek from a sequence number")
def peek_from(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b", "c", "d")
    receiver = bus.receiver("queue")
    equal(bodies(receiver.peek(2, start=2)), ["b", "c"])
    equal(receiver.peek(2, start=5), [])


@scenario("peek at messages in every state")
def peek_states(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "deferred", "locked", "waiting")
    due = world.now(minutes=5)
    bus.sender("queue").schedule(due, "scheduled")
    receiver = bus.receiver("queue")
    receiver.defer(receiver.receive(2)[0])
    found = receiver.peek(start=1)
    equal(
        {message.body: message.state for message in found},
        {"deferred": "deferred", "locked": "active", "waiting": "active", "scheduled": "scheduled"},
    )
    equal([message.scheduled for message in found if message.body == "scheduled"], [due])


@scenario("peek at an empty queue")
def peek_nothing(world: World) -> None:
    equal(world.connect().receiver("queue").peek(), [])

"""Sessions: by name, the next one, state, locks, order."""

from __future__ import annotations

from conformance.clients import Bus, bodies, equal, refused, refused_in_words
from conformance.steps import scenario
from conformance.world import World


def send(bus: Bus, *messages: tuple[str, str]) -> None:
    """Messages as pairs of session and body."""
    bus.send("sessions", *({"session": session, "body": body} for session, body in messages))


@scenario("accept a session by its id")
def by_id(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m1"), ("other", "m2"), ("s", "m3"))
    receiver = bus.accept("sessions", "s")
    equal(receiver.session, "s")
    equal(receiver.until, None if world.sdk == "java" else world.now(minutes=1))  # that SDK does not return it
    messages = receiver.receive(2)
    equal(bodies(messages), ["m1", "m3"])
    equal({message.session for message in messages}, {"s"})
    for message in messages:
        receiver.complete(message)
    equal(world.active("sessions"), 1)


@scenario("accept the next free session")
def next_free(world: World) -> None:
    bus = world.connect()
    send(bus, ("a", "a1"), ("b", "b1"))
    one, two = bus.accept("sessions"), bus.accept("sessions")
    equal((one.session, two.session), ("a", "b"))
    equal((one.take(), two.take()), (["a1"], ["b1"]))


@scenario("wait for the next session")
def waits(world: World) -> None:
    bus = world.connect()
    accepting = bus.accepting("sessions")
    world.await_session_waiter()
    send(world.connect(), ("s", "m"))
    receiver = bus.accepted(accepting)
    equal((receiver.session, receiver.take()), ("s", ["m"]))


@scenario("wait for the next session of an empty queue")
def waits_in_vain(world: World) -> None:
    bus = world.connect()
    accepting = bus.accepting("sessions")
    world.await_session_waiter()
    world.advance(600)  # some SDKs wait long
    with refused("timeout"):
        bus.accepted(accepting)


@scenario("accept a session that another receiver has locked")
def held(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m"))
    holder = bus.accept("sessions", "s")
    with refused("session-taken"):
        world.connect().accept("sessions", "s")
    equal(holder.take(), ["m"])


@scenario("receive from two sessions at once")
def two_receivers(world: World) -> None:
    one, two = world.connect(), world.connect()
    send(one, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"))
    first, second = one.accept("sessions", "a"), two.accept("sessions", "b")
    equal((second.take(2), first.take(2)), (["b1", "b2"], ["a1", "a2"]))
    equal(world.active("sessions"), 0)


@scenario("close the receiver of a session")
def close(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m"))
    first = bus.accept("sessions", "s")
    first.one()
    first.close()
    again = bus.accept("sessions", "s")
    equal(again.one().body, "m")


@scenario("keep the state of a session")
def state(world: World) -> None:
    bus = world.connect()
    receiver = bus.accept("sessions", "s")
    if receiver.state:
        raise AssertionError("a new session has a state")
    receiver.state = "step 3"
    equal(receiver.state, "step 3")
    receiver.close()
    other = bus.accept("sessions", "other")
    if other.state:
        raise AssertionError("another session has the state")
    equal(bus.accept("sessions", "s").state, "step 3")


@scenario("clear the state of a session")
def clear(world: World) -> None:
    receiver = world.connect().accept("sessions", "s")
    receiver.state = "step 3"
    receiver.state = None
    if receiver.state:
        raise AssertionError("the state is still there")


@scenario("renew the lock of a session")
def renew(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m"))
    receiver = bus.accept("sessions", "s")
    message = receiver.one()
    world.advance(40)
    equal(receiver.renew_session(), world.now(minutes=1))
    world.advance(40)
    receiver.complete(message)
    equal(world.active("sessions"), 0)


@scenario("lose the lock of a session")
def lost(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m"))
    receiver = bus.accept("sessions", "s")
    message = receiver.one()
    world.advance(61)
    world.let_it_be_noticed()
    with refused(world.kind("session-lock-lost")):
        receiver.complete(message)
    receiver.close()  # one SDK accepts the session again automatically
    again = world.connect().accept("sessions", "s")
    equal(again.one().delivery_count, 1)


@scenario("renew the lock of a lost session")
def renew_lost(world: World) -> None:
    receiver = world.connect().accept("sessions", "s")
    world.advance(61)
    with refused(world.kind("session-lock-lost")):
        receiver.renew_session()


@scenario("abandon a message of a session")
def abandon(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "first"), ("s", "second"))
    receiver = bus.accept("sessions", "s")
    receiver.abandon(receiver.one())
    messages = receiver.receive(2)
    equal(bodies(messages), ["first", "second"])
    equal([message.delivery_count for message in messages], [1, 0])


@scenario("dead-letter and defer messages of a session")
def settle(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "bad"), ("s", "later"))
    receiver = bus.accept("sessions", "s")
    bad, later = receiver.receive(2)
    receiver.dead_letter(bad)
    receiver.defer(later)
    dead = bus.receiver("sessions", part="dead").one()
    equal((dead.body, dead.session, dead.reason), ("bad", "s", "a reason"))
    (fetched,) = receiver.deferred(later.sequence)
    receiver.complete(fetched)
    equal((world.active("sessions"), world.counters("sessions").deferred), (0, 0))


@scenario("peek in a session")
def peek(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m1"), ("other", "m2"), ("s", "m3"))
    equal(bodies(bus.accept("sessions", "s").peek()), ["m1", "m3"])


@scenario("receive and delete in a session")
def deletes(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "a"), ("other", "b"), ("s", "c"))
    equal(bodies(bus.accept("sessions", "s", deletes=True).receive(2)), ["a", "c"])
    equal(world.active("sessions"), 1)


@scenario("list the sessions of a queue")
def listed(world: World) -> None:
    bus = world.connect()
    send(bus, ("a", "m1"), ("b", "m2"), ("a", "m3"))
    equal(sorted(bus.sessions("sessions")), ["a", "b"])


@scenario("send a message without a session to a queue with sessions")
def without(world: World) -> None:
    bus = world.connect()
    with refused_in_words("requires sessions"):
        bus.send("sessions", "lost")
    equal(world.active("sessions"), 0)


@scenario("receive without a session from a queue with sessions")
def receive_without(world: World) -> None:
    bus = world.connect()
    send(bus, ("s", "m"))
    with refused_in_words("requires sessions"):
        bus.receiver("sessions").ask(1)
    equal(world.active("sessions"), 1)

"""Settlement: every outcome, locks, dead letters, deferral."""

from __future__ import annotations

from conformance.clients import bodies, equal, refused
from conformance.steps import scenario
from conformance.world import World


@scenario("complete a message")
def complete(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b")
    receiver = bus.receiver("queue")
    one, two = receiver.receive(2)
    receiver.complete(two)
    equal(world.active(), 1)
    receiver.complete(one)
    equal(world.active(), 0)


@scenario("abandon a message")
def abandon(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a")
    receiver = bus.receiver("queue")
    receiver.abandon(receiver.one())
    again = receiver.one()
    equal((again.body, again.delivery_count), ("a", 1))


@scenario("abandon a message and change its properties")
def abandon_with(world: World) -> None:
    bus = world.connect()
    bus.send("queue", {"body": "a", "properties": {"kept": "yes"}})
    receiver = bus.receiver("queue")
    receiver.abandon(receiver.one(), {"tried": 1})
    equal(receiver.one().properties, {"kept": "yes", "tried": 1})


@scenario("abandon a message too often")
def too_often(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "poison")
    receiver = bus.receiver("queue")
    for count in range(3):
        message = receiver.one()
        equal(message.delivery_count, count)
        receiver.abandon(message)
    equal(world.active(), 0)
    dead = bus.receiver("queue", part="dead").one()
    equal((dead.body, dead.reason), ("poison", "MaxDeliveryCountExceeded"))


@scenario("dead-letter a message")
def dead_letter(world: World) -> None:
    bus = world.connect()
    bus.send("queue", {"body": "bad", "properties": {"kept": "yes"}})
    receiver = bus.receiver("queue")
    receiver.dead_letter(receiver.one(), "a reason", "a description")
    equal(world.active(), 0)
    dead = bus.receiver("queue", part="dead").one()
    equal((dead.body, dead.reason, dead.description), ("bad", "a reason", "a description"))
    equal(dead.properties["kept"], "yes")


@scenario("dead-letter a message and change its properties")
def dead_letter_with(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "bad")
    receiver = bus.receiver("queue")
    receiver.dead_letter(receiver.one(), properties={"extra": 7})
    equal(bus.receiver("queue", part="dead").one().properties["extra"], 7)


@scenario("receive and complete dead letters")
def dead_letters(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b")
    receiver = bus.receiver("queue")
    for message in receiver.receive(2):
        receiver.dead_letter(message)
    letters = bus.receiver("queue", part="dead")
    equal(bodies(letters.peek(start=1)), ["a", "b"])
    equal(letters.take(2), ["a", "b"])
    equal(world.active("queue/$deadletterqueue"), 0)


@scenario("abandon and defer dead letters")
def settle_dead_letters(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a")
    receiver = bus.receiver("queue")
    receiver.dead_letter(receiver.one())
    letters = bus.receiver("queue", part="dead")
    letters.abandon(letters.one())
    again = letters.one()
    equal((again.body, again.reason), ("a", "a reason"))
    letters.defer(again)
    (deferred,) = letters.deferred(again.sequence)
    equal(deferred.body, "a")
    letters.complete(deferred)
    equal(world.counters("queue/$deadletterqueue").deferred, 0)


@scenario("send a dead letter again")
def resend(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a")
    receiver = bus.receiver("queue")
    receiver.dead_letter(receiver.one())
    letters = bus.receiver("queue", part="dead")
    dead = letters.one()
    bus.send("queue", dead.body)
    letters.complete(dead)
    message = receiver.one()
    equal((message.body, message.reason), ("a", None))


@scenario("defer a message and fetch it")
def defer(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "later", "now")
    receiver = bus.receiver("queue")
    later, now = receiver.receive(2)
    receiver.defer(later)
    receiver.complete(now)
    equal((world.counters().active, world.counters().deferred), (0, 1))
    (fetched,) = receiver.deferred(later.sequence)
    equal((fetched.body, fetched.state, fetched.sequence), ("later", "deferred", later.sequence))
    receiver.complete(fetched)
    equal(world.counters().deferred, 0)


@scenario("settle deferred messages in every way")
def settle_deferred(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "complete", "abandon", "defer", "dead-letter")
    receiver = bus.receiver("queue")
    messages = receiver.receive(4)
    for message in messages:
        receiver.defer(message)
    fetched = receiver.deferred(*(message.sequence for message in messages))
    equal(bodies(fetched), ["complete", "abandon", "defer", "dead-letter"])
    receiver.complete(fetched[0])
    receiver.abandon(fetched[1])
    receiver.defer(fetched[2])
    receiver.dead_letter(fetched[3])
    equal((world.counters().active, world.counters().deferred), (0, 2))
    equal(bodies(bus.receiver("queue", part="dead").receive(1)), ["dead-letter"])
    again = receiver.deferred(messages[1].sequence, messages[2].sequence)
    equal(bodies(again), ["abandon", "defer"])


@scenario("fetch a missing deferred message")
def fetch_nothing(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "active")
    receiver = bus.receiver("queue")
    for number in (1, 99):
        if world.sdk == "java":
            equal(receiver.deferred(number), [])  # this SDK treats the refusal as an answer
            continue
        with refused(world.kind("message-not-found")):
            receiver.deferred(number)


@scenario("let the lock of a deferred message expire")
def deferred_lock(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "later")
    receiver = bus.receiver("queue")
    message = receiver.one()
    receiver.defer(message)
    (fetched,) = receiver.deferred(message.sequence)
    world.advance(61)
    with refused("lock-lost"):
        receiver.complete(fetched)
    (again,) = receiver.deferred(message.sequence)
    receiver.complete(again)
    equal(world.counters().deferred, 0)


# --- locks ---


@scenario("renew the lock of a message")
def renew(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "slow")
    receiver = bus.receiver("queue")
    message = receiver.one()
    world.advance(40)
    equal(receiver.renew(message), world.now(minutes=1))
    world.advance(40)
    receiver.complete(message)
    equal(world.active(), 0)


@scenario("settle a message whose lock has expired")
def lost(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "slow")
    receiver = bus.receiver("queue")
    message = receiver.one()
    world.advance(61)
    with refused("lock-lost"):
        receiver.complete(message)
    again = receiver.one()
    equal((again.body, again.delivery_count), ("slow", 1))
    receiver.complete(again)
    equal(world.active(), 0)


@scenario("renew an expired lock")
def renew_lost(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "slow")
    receiver = bus.receiver("queue")
    message = receiver.one()
    world.advance(61)
    with refused("lock-lost"):
        receiver.renew(message)


@scenario("receive while another receiver has locked the message")
def locked(world: World) -> None:
    one, two = world.connect(), world.connect()
    one.send("queue", "held")
    holder = one.receiver("queue")
    message = holder.one()
    equal(two.receiver("queue").ask(1, wait=1), [])
    holder.abandon(message)
    equal(two.receiver("queue").one().delivery_count, 1)


@scenario("settle a message after the connection is lost")
def after_cut(world: World) -> None:
    bus = world.connect(retries=5)
    bus.send("queue", "a")
    receiver = bus.receiver("queue")
    message = receiver.one()
    world.cut()
    world.let_it_be_noticed()
    receiver.complete(message)
    equal(world.active(), 0)

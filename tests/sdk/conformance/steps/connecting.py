"""Connecting: transports, keys, tokens, rights."""

from __future__ import annotations

from conformance.clients import Bus, bodies, equal, refused
from conformance.steps import scenario
from conformance.world import ROOT, World
from peeklock.entities.authorization import DEFAULT_KEY


def there_and_back(world: World, bus: Bus, way: str, port: int) -> None:
    bus.send("queue", {"body": "hello", "subject": "greeting", "properties": {"n": 1}}, {"size": 200_000})
    receiver = bus.receiver("queue")
    small, large = receiver.receive(2)
    equal((small.body, small.subject, small.properties), ("hello", "greeting", {"n": 1}))
    equal(len(large.body), 200_000)
    receiver.complete(small)
    receiver.complete(large)
    equal(receiver.peek(start=1), [])
    equal(world.ways(), {(way, port)})


@scenario("connect without TLS")
def plain(world: World) -> None:
    there_and_back(world, world.connect(), "plain", 5672)


@scenario("connect with TLS")
def tls(world: World) -> None:
    there_and_back(world, world.connect(transport="tls"), "tls", 5671)


@scenario("connect over WebSocket")
def websocket(world: World) -> None:
    there_and_back(world, world.connect(transport="websocket"), "websocket", 443)


@scenario("connect with a signature in place of the key")
def signature(world: World) -> None:
    there_and_back(world, world.connect(signature=world.signature()), "plain", 5672)


@scenario("connect with a signature for one queue")
def signature_for_one(world: World) -> None:
    bus = world.connect(signature=world.signature("queue"))
    bus.send("queue", "a")
    equal(bus.receiver("queue").take(), ["a"])


@scenario("use a signature for another queue")
def signature_for_another(world: World) -> None:
    bus = world.connect(signature=world.signature("other"))
    with refused("unauthorized"):
        bus.send("queue", "a")
    equal(world.active(), 0)


@scenario("use a wrong key")
def wrong_key(world: World) -> None:
    bus = world.connect(key=(ROOT, "guessed"))
    with refused("unauthorized"):
        bus.send("queue", "a")
    equal(world.active(), 0)


@scenario("use an unknown key name")
def wrong_name(world: World) -> None:
    bus = world.connect(key=("nobody", DEFAULT_KEY))
    with refused("unauthorized"):
        bus.send("queue", "a")
    equal(world.active(), 0)


@scenario("use an expired token")
def expired(world: World) -> None:
    bus = world.connect(signature=world.signature(minutes=-5))
    with refused("unauthorized"):
        bus.send("queue", "a")
    equal(world.active(), 0)


@scenario("send with a key that may only listen")
def only_listen(world: World) -> None:
    world.connect().send("queue", "a")
    bus = world.connect(key=("listener", "listener-key"))
    equal(bus.receiver("queue").take(), ["a"])
    with refused("unauthorized"):
        bus.send("queue", "b")
    equal(world.active(), 0)


@scenario("receive with a key that may only send")
def only_send(world: World) -> None:
    bus = world.connect(key=("sender", "sender-key"))
    bus.send("queue", "a")
    with refused("unauthorized"):
        bus.receiver("queue").ask(1)
    equal(world.active(), 1)


@scenario("connect many clients at once")
def many(world: World) -> None:
    buses = [world.connect() for _ in range(10)]
    for number, bus in enumerate(buses):
        bus.send("queue", f"m{number}")
    equal(world.active(), 10)
    equal(len(world.connections()), 10)
    messages = buses[0].receiver("queue", deletes=True).receive(10)
    equal(sorted(bodies(messages)), [f"m{number}" for number in range(10)])


@scenario("write a queue's name in another case")
def any_case(world: World) -> None:
    bus = world.connect()
    bus.send("QUEUE", "a")
    equal(bus.receiver("Queue").take(), ["a"])


@scenario("close a client and connect again")
def again(world: World) -> None:
    first = world.connect()
    first.send("queue", "a")
    first.close()
    world.until(lambda: not world.connections(), "the connection is closed")
    equal(world.connect().receiver("queue").take(), ["a"])

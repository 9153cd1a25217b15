"""Sending: single messages, batches, scheduled messages, and errors."""

from __future__ import annotations

from typing import Any

from conformance.clients import bodies, equal, refused
from conformance.steps import scenario
from conformance.world import World


@scenario("send a message with everything set")
def everything(world: World) -> None:
    bus = world.connect()
    sent = {
        "id": "the-id",
        "session": "the-session",
        "subject": "the-subject",
        "correlation": "the-correlation",
        "content_type": "text/plain",
        "to": "the-to",
        "reply_to": "the-reply-to",
        "reply_session": "the-reply-session",
        "partition": "the-session",
    }
    properties: dict[str, Any] = {"text": "äöü€😀", "empty": "", "whole": 3, "real": 1.5, "yes": True}
    bus.send("queue", {"body": "hello ü", "properties": properties, "ttl": 300_000, **sent})
    message = bus.receiver("queue").one()
    equal(message.body, "hello ü")
    equal({name: getattr(message, name) for name in sent}, sent)
    equal(with_types(message.properties), with_types(properties))
    equal((message.sequence, message.delivery_count, message.state), (1, 0, "active"))
    equal(message.enqueued, world.now())
    equal(message.locked_until, world.now(minutes=1))
    equal(message.expires, world.now(minutes=5))


def with_types(properties: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    """In Python 1, 1.0 and True are equal."""
    return {name: (type(value), value) for name, value in properties.items()}


@scenario("send a message with an empty body")
def empty(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "")
    message = bus.receiver("queue").one()
    equal(message.body, "")


@scenario("send a large message")
def large(world: World) -> None:
    bus = world.connect()
    body = "".join(f"{number:07} " for number in range(31_250))  # so that a misplaced part is noticed
    bus.send("queue", body)
    found = bus.receiver("queue").one().body
    equal(len(found), 250_000)
    if found != body:
        raise AssertionError("250 KB came, but not those that were sent")


@scenario("send many messages one by one")
def one_by_one(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(50)]
    bus.send("queue", *numbers)
    messages = bus.receiver("queue").receive(50)
    equal(bodies(messages), numbers)
    equal([message.sequence for message in messages], list(range(1, 51)))


@scenario("send a batch")
def batch(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(50)]
    bus.sender("queue").send(*numbers, batch=True)
    messages = bus.receiver("queue").receive(50)
    equal(bodies(messages), numbers)
    equal([message.sequence for message in messages], list(range(1, 51)))


@scenario("send a full batch")
def full_batch(world: World) -> None:
    bus = world.connect()
    count = bus.sender("queue").fill(10_000)
    if not 20 <= count <= 26:  # of 256 KB
        raise AssertionError(f"{count} messages of 10 KB in a batch")
    equal(world.active(), count)


@scenario("send a message that is too large")
def too_large(world: World) -> None:
    sender = world.connect().sender("queue")
    with refused("too-large"):
        sender.send({"size": 300_000})
    sender.send("small")
    equal(world.active(), 1)


@scenario("send to a missing queue")
def not_there(world: World) -> None:
    bus = world.connect()
    with refused(world.kind("no-entity")):
        bus.send("nowhere", "a")
    bus.send("queue", "the connection lives on")
    equal(world.active(), 1)


@scenario("send to a disabled queue")
def disabled(world: World) -> None:
    bus = world.connect()
    with refused("disabled"):
        bus.send("closed", "a")
    equal(world.active("closed"), 0)


@scenario("send to a queue that is disabled for sending")
def disabled_for_sending(world: World) -> None:
    bus = world.connect()
    with refused("disabled"):
        bus.send("no-sending", "a")
    bus.send("no-receiving", "a")
    equal((world.active("no-sending"), world.active("no-receiving")), (0, 1))


@scenario("schedule a message")
def schedule(world: World) -> None:
    bus = world.connect()
    due = world.now(minutes=5)
    bus.sender("queue").schedule(due, "later")
    equal((world.counters().active, world.counters().scheduled), (0, 1))
    world.advance(300)
    message = bus.receiver("queue").one()
    equal((message.body, message.enqueued), ("later", due))


@scenario("schedule several messages at once")
def schedule_several(world: World) -> None:
    bus = world.connect()
    numbers = bus.sender("queue").schedule(world.now(minutes=1), "a", "b", "c")
    equal(numbers, [1, 2, 3])
    world.advance(60)
    equal(bus.receiver("queue").take(3), ["a", "b", "c"])


@scenario("send a message with a scheduled enqueue time")
def enqueue_time(world: World) -> None:
    bus = world.connect()
    bus.send("queue", {"body": "later", "at": world.now(minutes=5)}, "now")
    receiver = bus.receiver("queue")
    equal(receiver.take(), ["now"])
    equal(world.counters().scheduled, 1)
    world.advance(300)
    equal(receiver.take(), ["later"])


@scenario("cancel scheduled messages")
def cancel(world: World) -> None:
    bus = world.connect()
    sender = bus.sender("queue")
    numbers = sender.schedule(world.now(minutes=1), "kept", "cancelled", "cancelled too")
    sender.cancel(*numbers[1:])
    equal(world.counters().scheduled, 1)
    world.advance(60)
    equal(bus.receiver("queue").take(), ["kept"])
    equal(world.active(), 0)


@scenario("cancel a missing scheduled message")
def cancel_nothing(world: World) -> None:
    sender = world.connect().sender("queue")
    (number,) = sender.schedule(world.now(minutes=1), "a")
    sender.cancel(number)
    if world.sdk == "java":
        sender.cancel(number)  # this SDK treats the refusal as an answer
        return
    with refused(world.kind("message-not-found")):
        sender.cancel(number)

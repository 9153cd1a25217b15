"""Slow scenarios: idle connections, restarts, handlers, concurrency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from conformance.clients import Receiver, bodies, equal
from conformance.program import SdkError
from conformance.steps import scenario
from conformance.world import World

IDLE = 130.0
"""Seconds: more than twice the longest idle time-out that an SDK asks for."""


@scenario("stay connected while idle")
def idle(world: World) -> None:
    world.in_real_time()
    bus = world.connect()
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    sender.send("before")
    equal(receiver.take(), ["before"])
    asking = receiver.asking(1, wait=IDLE + 30)
    before = world.connections()
    time.sleep(IDLE)
    equal(world.connections(), before)
    sender.send("after")
    equal(bodies(receiver.asked(asking, patience=60)), ["after"])


@scenario("handle messages as they arrive")
def process(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(20)]
    processing = bus.processing(queue="queue", count=20)
    bus.send("queue", *numbers)
    equal(bodies(bus.processed(processing)), numbers)
    world.until(lambda: world.active() == 0, "all messages are completed")


@scenario("handle several messages at once")
def process_at_once(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(20)]
    bus.send("queue", *numbers)
    handled = bus.process(queue="queue", count=20, concurrent=5)
    equal(sorted(bodies(handled)), sorted(numbers))
    world.until(lambda: world.active() == 0, "all messages are completed")


@scenario("fail in a handler")
def process_failing(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "hard")
    handled = bus.process(queue="queue", count=2, fails=True)
    equal([message.delivery_count for message in handled], [0, 1])
    world.until(lambda: world.active() == 0, "the message is completed")


@scenario("handle the messages of a session")
def process_session(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(10)]
    bus.send("sessions", *({"session": "s", "body": body} for body in numbers))
    equal(bodies(bus.process(queue="sessions", session="s", count=10)), numbers)
    world.until(lambda: world.active("sessions") == 0, "all messages are completed")


@scenario("handle the messages of a subscription")
def process_subscription(world: World) -> None:
    bus = world.connect()
    bus.publisher().send("a", "b", "c")
    equal(bodies(bus.process(topic="topic", subscription="all", count=3)), ["a", "b", "c"])
    world.until(lambda: world.active("topic/Subscriptions/all") == 0, "all messages are completed")


@scenario("handle a message for longer than its lock")
def process_long(world: World) -> None:
    world.in_real_time()
    bus = world.connect()
    bus.send("brief-lock", "slow")
    (handled,) = bus.process(queue="brief-lock", count=1, work=8, renew=True)
    equal((handled.body, handled.delivery_count), ("slow", 0))
    world.until(lambda: world.active("brief-lock") == 0, "the message is completed")


@scenario("send and receive from many clients at once")
def many(world: World) -> None:
    world.in_real_time()
    senders = [world.connect() for _ in range(4)]
    receivers = [world.connect().receiver("queue") for _ in range(4)]
    wanted = {f"{client}-{number}" for client in range(4) for number in range(50)}
    found: list[str] = []
    deadline = time.monotonic() + 150

    def send(client: int) -> None:
        sender = senders[client].sender("queue")
        for start in range(0, 50, 5):
            sender.send(*(f"{client}-{number}" for number in range(start, start + 5)))

    def receive(receiver: Receiver) -> None:
        while len(found) < len(wanted):
            if time.monotonic() > deadline:
                raise AssertionError(f"never received: {sorted(wanted - set(found))}")
            for message in receiver.ask(10, wait=3):
                receiver.complete(message)
                found.append(message.body)

    _together(
        *(partial(send, client) for client in range(4)),
        *(partial(receive, receiver) for receiver in receivers),
    )
    equal((len(found), set(found)), (len(wanted), wanted))
    equal(world.active(), 0)


@scenario("continue after the connection is lost")
def cut(world: World) -> None:
    bus = world.connect(retries=5)
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    sender.send("before")
    equal(receiver.take(), ["before"])
    world.cut()
    sender.send("after")
    equal(_patiently(receiver), "after")


@scenario("continue after the broker is restarted")
def restart(world: World) -> None:
    broker = world.in_a_process()
    bus = world.connect(retries=10)
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    sender.send("before")
    broker.stop()
    broker.start()
    sender.send("after")
    equal([_patiently(receiver), _patiently(receiver)], ["before", "after"])


@scenario("kill the broker under load")
def kill(world: World) -> None:
    broker = world.in_a_process()
    bus = world.connect(retries=10)
    acknowledged: set[str] = set()
    received: set[str] = set()
    sent = threading.Event()
    deadline = time.monotonic() + 240

    def send() -> None:
        sender = bus.sender("queue")
        for number in range(150):
            while f"m{number}" not in acknowledged and time.monotonic() < deadline:
                try:
                    sender.send(f"m{number}")
                    acknowledged.add(f"m{number}")
                except SdkError:
                    time.sleep(0.2)
        sent.set()

    def receive() -> None:
        receiver = bus.receiver("queue")
        while not (sent.is_set() and acknowledged <= received):
            if time.monotonic() > deadline:
                raise AssertionError(f"never received: {sorted(acknowledged - received)}")
            try:
                for message in receiver.ask(10, wait=2):
                    received.add(message.body)
                    receiver.complete(message)
            except SdkError:
                # One SDK abandons a receiver after several failed connections, and raises an error.
                receiver = bus.receiver("queue")
                time.sleep(0.2)

    def disturb() -> None:
        for enough in (30, 90):
            world.until(partial(_at_least, enough, acknowledged), "messages are sent", patience=100)
            broker.kill()
            broker.start()

    _together(send, receive, disturb)
    equal(len(acknowledged), 150)


def _at_least(enough: int, found: set[str]) -> bool:
    return len(found) >= enough


def _patiently(receiver: Receiver) -> str:
    """Some SDKs return nothing or raise an error when the connection is lost while they wait."""
    last: SdkError | None = None
    for _ in range(10):
        try:
            for message in receiver.ask(1, wait=10):
                receiver.complete(message)
                return message.body
        except SdkError as error:
            last = error
            time.sleep(0.5)
    raise AssertionError(f"nothing came; the last error was {last}") from last


def _together(*works: Callable[[], None]) -> None:
    """Run all concurrently; raise the first error after all have ended."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

"""Greed: clients with all rights that use resources without releasing them."""

from __future__ import annotations

import time
from typing import Final

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Accepted, Attach, Transfer
from peeklock.amqp.types import Array, Int, Symbol, Timestamp
from peeklock.atom.markup import ATOM, SERVICE_BUS
from peeklock.client.connection import SESSION_FILTER
from tools.hostile.attack import attack, require
from tools.hostile.lines import frame
from tools.hostile.victim import (
    CLOSE,
    QUEUE,
    SESSIONS,
    SUBSCRIPTION,
    TOPIC,
    Requests,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    transfer,
)

SECONDS: Final = 2.0
"""Duration of attacks that have no other end."""


def _filled(victim: Victim, count: int, size: int) -> None:
    """Empty the queue and send so many messages to it."""
    victim.drain()
    with victim.sending() as line:
        body = message(b"x" * size)
        for first in range(0, count, 100):
            line.send(*[transfer(number, body) for number in range(first, min(count, first + 100))])
        require(all(isinstance(each, Accepted) for each in outcomes(line, count)), "the queue could not be filled")
        line.send(CLOSE)
        line.answer()


@attack(answer="writes until the socket's buffer is full; the messages stay in the queue", log="link attached")
def a_receiver_that_never_reads(victim: Victim) -> None:
    """Receivers with credit of 2^32 - 1 on a queue of 60 MB, which do not read from their sockets."""
    _filled(victim, 1000, 60_000)
    lines = []
    for _ in range(20):
        line = victim.receiving(receive_buffer=4096)
        line.send(credit(0xFFFFFFFF, window=0xFFFFFFFF))
        lines.append(line)
    time.sleep(SECONDS)
    for line in lines:
        line.reset()
    found = _drained_patiently(victim, 1000)
    require(found == 1000, f"of 1000 messages {found} are left")


def _drained_patiently(victim: Victim, count: int) -> int:
    """Drain the queue until all messages were received: locks of closed receivers are released a moment later."""
    found = 0
    deadline = time.monotonic() + 60
    while found < count and time.monotonic() < deadline:
        found += victim.drain()
        time.sleep(0.5)
    return found


@attack(answer="delivers them to other receivers when their locks expire; none is lost", log="link attached")
def a_receiver_that_never_settles(victim: Victim) -> None:
    """A receiver that receives 5000 messages, settles none of them, and then closes its socket."""
    _filled(victim, 5000, 100)
    line = victim.receiving()
    line.send(credit(5000, window=100_000))
    for _ in range(5000):
        line.expect(Transfer)
    line.reset()
    found = _drained_patiently(victim, 5000)
    require(found == 5000, f"of 5000 messages {found} are left")


@attack(answer="reads as fast as the disk writes; every stored message was sent", log="connection opened")
def a_sender_that_never_stops(victim: Victim) -> None:
    """Messages of 10 KB as fast as the socket accepts them, for two seconds, without reading any outcome."""
    victim.drain()
    line = victim.sending()
    piece = b"".join(transfer(number, message(b"x" * 10_000)) for number in range(100))
    deadline = time.monotonic() + SECONDS
    sent = at = 0
    while time.monotonic() < deadline:
        taken = line.send_available(piece[at:])
        sent += taken
        at = (at + taken) % len(piece)
        if not taken:
            time.sleep(0.01)
    messages = sent // (len(piece) // 100)
    line.reset()
    require(messages > 0, "nothing could be sent")
    found = victim.drain()
    require(found <= messages, f"{found} messages arrived, of {messages} that were sent")


@attack(answer="keeps 1000 answers or 32 MiB for a link without credit, then rejects requests", log="connection closed")
def a_client_that_never_takes_answers(victim: Victim) -> None:
    """2000 peeks with answers of 4 MiB each, on a link that grants no credit for them."""
    _filled(victim, 200, 60_000)
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management", window=0)
        for _ in range(2000):
            requests.post(
                {"operation": "com.microsoft:peek-message"},
                {"from-sequence-number": 1, "message-count": Int(0x7FFFFFFF)},
            )
        line.send(CLOSE)
        line.answer()
    victim.drain()


@attack(
    answer="stops reading requests while 1 MiB of answers is unread, and holds at most 32 MiB of answers",
    log="link attached",
)
def a_client_that_never_reads_answers(victim: Victim) -> None:
    """100 peeks with credit for every answer, on each of three connections that are not read."""
    _filled(victim, 200, 60_000)
    lines = [victim.begun(receive_buffer=4096) for _ in range(3)]
    for line in lines:
        requests = Requests(line, f"{QUEUE}/$management", window=100_000)
        for _ in range(100):
            requests.post(
                {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(4096)}
            )
    time.sleep(SECONDS)
    for line in lines:
        line.reset()
    victim.drain()


@attack(answer="answers them one after the other", log="connection closed")
def request_storm(victim: Victim) -> None:
    """10,000 requests to `$management`, 100 at a time."""
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management", window=20_000)
        for _ in range(100):
            for _ in range(100):
                requests.post(
                    {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(10)}
                )
            for _ in range(100):
                requests.answer()
        line.send(CLOSE)
        line.answer()


@attack(answer="accepts the sessions, one for each link", log="link|connection closed")
def a_receiver_of_all_sessions(victim: Victim) -> None:
    """2000 sessions with a message each, all accepted at once and never released, until the socket is closed."""
    with victim.sending(SESSIONS) as line:
        bodies = [Message(properties=Properties(group_id=f"s{each}"), data=[b"x"]).encode() for each in range(2000)]
        line.send(*[transfer(number, body) for number, body in enumerate(bodies)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, 2000)), "the sessions could not be filled")
    line = victim.begun()
    for first in range(0, 2000, 50):
        for handle in range(first, first + 50):
            line.send(frame(receiver(SESSIONS, handle, filter={SESSION_FILTER: f"s{handle}"})))
        for _ in range(50):
            require(line.expect(Attach).source is not None, "a session that was free was refused")
    line.reset()


@attack(answer="keeps them until they are cancelled", log="connection closed")
def messages_scheduled_far_ahead(victim: Victim) -> None:
    """20,000 messages scheduled for the year 9999, and cancelled."""
    scheduled = Message(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(253_370_764_800_000)}, data=[b"x" * 100]
    ).encode()
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management", window=1000)
        numbers: list[int] = []
        for _ in range(20):
            requests.post(
                {"operation": "com.microsoft:schedule-message"},
                {"messages": [{"message": scheduled, "message-id": f"{each}"} for each in range(1000)]},
            )
            numbers += requests.answer().value["sequence-numbers"]
        require(len(set(numbers)) == 20_000, f"{len(set(numbers))} messages were scheduled")
        for first in range(0, 20_000, 1000):
            status = requests.ask(
                {"operation": "com.microsoft:cancel-scheduled-message"},
                {"sequence-numbers": Array(numbers[first : first + 1000], int)},
            )
            require(status == 200, f"taking them back was answered with {status}")
        line.send(CLOSE)
        line.answer()


@attack(
    answer="reuses the ids of deleted entities, so that other clients can always create entities",
    log="connection closed",
)
def entities_created_and_deleted(victim: Victim) -> None:
    """200 subscriptions of a topic, each created, filled and deleted; then a queue is created and used."""
    stays = f"{TOPIC}/Subscriptions/{SUBSCRIPTION}"
    victim.drain(stays)
    path = f"/{TOPIC}/Subscriptions/passing?api-version=2021-05"
    entry = _description("Subscription")
    body = message(b"x" * 1000)
    with victim.dial() as http, victim.sending(TOPIC) as line:
        for number in range(200):
            http.send(victim.request("PUT", path, entry))
            status, _ = http.response()
            require(status == 201, f"creation {number} was answered with {status}")
            line.send(*[transfer(5 * number + each, body) for each in range(5)])
            http.send(victim.request("DELETE", path))
            status, _ = http.response()
            require(status == 200, f"deletion {number} was answered with {status}")
        require(all(isinstance(each, Accepted) for each in outcomes(line, 1000)), "the topic refused messages")
        line.send(CLOSE)
        line.answer()
    found = victim.drain(stays)
    require(found == 1000, f"the subscription that stayed has {found} messages, of 1000")
    queue = "/after-the-passing?api-version=2021-05"
    require(
        victim.ask(victim.request("PUT", queue, _description("Queue")))[0] == 201, "entities cannot be created any more"
    )
    with victim.sending("after-the-passing") as line:
        line.send(transfer(0, body))
        require(isinstance(outcomes(line, 1)[0], Accepted), "the new queue refused a message")
        line.send(CLOSE)
        line.answer()
    require(victim.drain("after-the-passing") == 1, "the new queue has other messages than its own")
    require(victim.ask(victim.request("DELETE", queue))[0] == 200, "the new queue cannot be deleted")


def _description(kind: str) -> bytes:
    return f'<entry xmlns="{ATOM}"><content><{kind}Description xmlns="{SERVICE_BUS}"/></content></entry>'.encode()

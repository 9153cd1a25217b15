"""Memory: clients that make the broker hold as much as it allows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Disposition,
    Modified,
    Rejected,
    Transfer,
)
from peeklock.amqp.types import Array, Int, Timestamp, UByte
from tools.hostile.attack import MIB, attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    CLOSE,
    IDS,
    QUEUE,
    REMEMBERED_IDS,
    UPGRADE,
    Requests,
    Transacting,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    sender,
    status_of,
    transfer,
)

LONG_HEADER: Final = b"X: " + b"x" * 8180 + b"\r\n"
"""Nearly the longest that is accepted. The C library returns memory of this size to the system when it is freed."""
LARGE: Final = 250_000
"""Bytes; about the largest message of the standard tier."""
QUIET_SECONDS: Final = 1.0
DEAD_LETTERS: Final = f"{QUEUE}/$deadletterqueue"


def _send(victim: Victim, count: int, body: bytes, address: str = QUEUE) -> None:
    """Send messages, some at a time, and read their outcomes."""
    with victim.sending(address) as line:
        for first in range(0, count, 20):
            many = range(first, min(count, first + 20))
            line.send(*[transfer(number, body) for number in many])
            settled = 0
            while settled < len(many):
                disposition = line.expect(Disposition)
                require(isinstance(disposition.state, Accepted), "the queue could not be filled")
                settled += (disposition.last or disposition.first) - disposition.first + 1
        line.send(CLOSE)
        line.answer()


def _receive(line: Line, most: int) -> list[int]:
    """Receive without settling until nothing arrives for a while; returns the ids of the deliveries."""
    line.send(credit(most, window=100_000))
    taken: list[int] = []
    while len(taken) < most:
        line.wait_for_frame(QUIET_SECONDS)
        if not line.has_frame:
            break
        delivery = line.expect(Transfer)
        taken.append(delivery.delivery_id or 0)
    return taken


def _all_of(victim: Victim, count: int, address: str = QUEUE) -> None:
    """Drain the queue, waiting for locks of closed receivers, and check the number of messages."""
    found = 0
    deadline = time.monotonic() + 60
    while found < count and time.monotonic() < deadline:
        found += victim.drain(address)
        time.sleep(0.2)
    require(found == count, f"of {count} messages {found} are left")


@attack(
    answer="accepts 64 MB from a connection, 96 MB from a rule and 128 MB in total; other clients can still send",
    log="connection opened",
    max_peak=320 * MIB,
)
def transactions_that_are_never_ended(victim: Victim) -> None:
    """Eight connections that send large messages in transactions until they are refused, without a discharge."""
    victim.drain()
    greedy = [Transacting(victim.sending()) for _ in range(8)]
    body = message(b"x" * LARGE)
    for each in greedy:
        refused = False
        for _ in range(4):
            transaction = each.declare()
            refused = not all(each.send(transaction, body) for _ in range(100))
            if refused:
                break
        require(refused, "a connection may hold 100 MB in transactions")
    with victim.sending() as line:
        line.send(*[transfer(number, message()) for number in range(100)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, 100)), "a plain sender was refused")
    modest = Transacting(victim.sending())
    require(modest.send(modest.declare(), message()), "a modest connection may hold nothing in a transaction")
    for each in (*greedy, modest):
        each.line.reset()
    require(victim.drain() == 100, "a message of an undischarged transaction is stored")


@attack(
    answer="locks 128 MB for a connection, 192 MB for a rule and 256 MB in total; none is lost",
    log="link attached",
    max_peak=576 * MIB,
)
def locks_without_end(victim: Victim) -> None:
    """Receivers on six connections with credit for 1,200 messages of 250 KB, which settle none of them."""
    victim.drain()
    _send(victim, 1200, message(b"x" * LARGE))
    lines = [victim.receiving() for _ in range(6)]
    taken = [len(_receive(line, 1200)) for line in lines]
    require(max(taken) * LARGE < 160 * MIB, f"one connection got {max(taken)} messages")
    require(sum(taken) * LARGE < 420 * MIB, f"all together got {sum(taken)} messages")
    for line in lines:
        line.reset()
    _all_of(victim, 1200)


@attack(
    answer="removes and keeps 128 MiB for a connection, 192 MiB for a rule and 256 MiB in total; the rest stays",
    log="link attached",
    max_peak=448 * MIB,
)
def deleting_receivers_that_never_read(victim: Victim) -> None:
    """Eight connections that receive and delete 300 messages of 250 KB each, and never read from their sockets."""
    count = 2400
    victim.drain()
    _send(victim, count, message(b"x" * LARGE))
    lines = []
    for _ in range(8):
        line = victim.begun(receive_buffer=4096)
        line.send(frame(replace(receiver(), snd_settle_mode=1)), credit(300, window=100_000))
        lines.append(line)
    time.sleep(3 * QUIET_SECONDS)
    for line in lines:
        line.reset()
    left = victim.drain()
    require(left * LARGE > count * LARGE - 448 * MIB, f"of {count} messages {left} are left")


@attack(
    answer="holds at most 128 MiB for a connection, 192 MiB for a rule and 256 MiB in total; detaches further links",
    log="incomplete messages",
    max_peak=448 * MIB,
)
def incomplete_messages_of_many_connections(victim: Victim) -> None:
    """Eight connections with 400 links each, and 250,000 bytes of an incomplete message on every link."""
    part = b"x" * LARGE
    lines = [victim.begun() for _ in range(8)]
    refused = 0
    for line in lines:
        for first in range(0, 400, 50):
            line.send(*[frame(sender(handle=handle)) for handle in range(first, first + 50)])
            for _ in range(50):
                line.expect(Attach)
        for handle in range(400):
            line.send(transfer(handle, part, handle=handle, more=True))
        line.wait_for_frame(QUIET_SECONDS)
        refused += line.has_frame
    require(refused >= 5, f"only {refused} of 8 connections were refused links")
    with victim.sending() as modest:
        modest.send(transfer(0, message(), more=True), transfer(0, b""))
        require(isinstance(outcomes(modest, 1)[0], Accepted), "a modest connection may send no message in parts")
    for line in lines:
        line.reset()
    victim.drain()


@attack(
    answer="refuses requests for more than 16 MiB with 403, and reads no more than that",
    log="connection closed",
    max_peak=256 * MIB,
)
def deferred_messages_all_at_once(victim: Victim) -> None:
    """400 deferred messages of 250 KB, requested at once, 50 times; then some at a time."""
    victim.drain()
    count = 400
    _send(victim, count, message(b"x" * LARGE))
    with victim.receiving() as line:
        first = min(_receive(line, count))
        line.send(
            frame(
                Disposition(
                    role=True,
                    first=first,
                    last=first + count - 1,
                    settled=False,
                    state=Modified(undeliverable_here=True),
                )
            )
        )
        settled = 0
        while settled < count:
            disposition = line.expect(Disposition)
            settled += (disposition.last or disposition.first) - disposition.first + 1
        line.send(CLOSE)
        line.answer()
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management", window=1000)
        peeked: list[int] = []
        while len(peeked) < count:
            requests.post(
                {"operation": "com.microsoft:peek-message"},
                {"from-sequence-number": (peeked[-1] + 1 if peeked else 1), "message-count": Int(100)},
            )
            for found in requests.whole_answer().value["messages"]:
                annotations = Message.decode(found["message"]).message_annotations or {}
                peeked.append(annotations["x-opt-sequence-number"])

        def fetch(numbers: list[int], mode: int) -> None:
            requests.post(
                {"operation": "com.microsoft:receive-by-sequence-number"},
                {"sequence-numbers": Array(numbers, int), "receiver-settle-mode": UByte(mode)},
            )

        for mode in (0, 1):
            for _ in range(25):
                fetch(peeked, mode)
        for _ in range(50):
            status = status_of(requests.whole_answer())
            require(status == 403, f"100 MB by one request were answered with {status}")
        for at in range(0, count, 50):
            fetch(peeked[at : at + 50], 0)
            status = status_of(requests.whole_answer())
            require(status == 200, f"12 MB by one request were answered with {status}")
        line.send(CLOSE)
        line.answer()


@attack(
    answer="reads a few MiB of them at a time; none is lost",
    log="connection closed",
    max_peak=192 * MIB,
)
def large_messages_that_are_due_and_expire_together(victim: Victim) -> None:
    """300 messages of 250 KB that are enqueued at the same moment, and 300 that expire at the same moment."""
    victim.drain()
    due = Timestamp(int((time.time() + 8) * 1000))
    scheduled = Message(message_annotations={"x-opt-scheduled-enqueue-time": due}, data=[b"x" * LARGE]).encode()
    _send(victim, 300, Message(header=Header(ttl=1000), data=[b"x" * LARGE]).encode())
    _send(victim, 300, scheduled)
    time.sleep(1)
    _all_of(victim, 300)


@attack(
    answer="drops the connection that holds the most when unauthenticated connections hold 32 MiB",
    log="hold too much memory, and this one the most",
    max_peak=96 * MIB,
)
def websocket_messages_without_an_end(victim: Victim) -> None:
    """60 unauthenticated WebSockets with 3.9 MB each of an incomplete message of 4 MB."""
    lines: list[Line] = []
    for _ in range(60):
        line = victim.dial()
        line.send(UPGRADE)
        line.wait(0.01)
        line.send(b"\x82\xff" + (4_000_000).to_bytes(8) + bytes(4))
        for _ in range(39):
            if not line.send(bytes(100_000)):
                break
        lines.append(line)
    for line in lines:
        line.wait(0.05)
    dropped = sum(line.is_closed for line in lines)
    require(dropped >= 50, f"of 60 connections {dropped} were dropped")
    for line in lines:
        line.reset()


@attack(
    answer="drops the connection that holds the most when unauthenticated connections hold 32 MiB",
    log="hold too much memory, and this one the most",
    max_peak=128 * MIB,
)
def http_heads_without_an_end(victim: Victim) -> None:
    """400 connections without a token, each with 120 headers of 8,185 bytes and no end of the head."""
    _drops_most(victim, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + LONG_HEADER * 120)


@attack(
    answer="answers 401, and drops the connection that holds the most when unauthenticated connections hold 32 MiB",
    log="hold too much memory, and this one the most",
    max_peak=576 * MIB,  # complete requests are freed only when their tasks have run
)
def large_heads_with_bodies_without_an_end(victim: Victim) -> None:
    """400 requests without a token, each with 120 headers of 8,185 bytes and an incomplete body."""
    head = f"POST /{QUEUE}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n".encode()
    _drops_most(victim, head + LONG_HEADER * 120 + b"\r\n")


@attack(
    answer="drops the connection that holds the most when unauthenticated connections hold 32 MiB",
    log="hold too much memory, and this one the most",
    max_peak=128 * MIB,
)
def requests_behind_unread_responses(victim: Victim) -> None:
    """24 connections that request `/metrics` without end, with 120 headers each time, and read no response."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 120 + b"\r\n"
    lines = [victim.dial(receive_buffer=4096) for _ in range(24)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(line.is_closed for line in lines):
        for line in lines:
            line.send_available(request * 40)
        time.sleep(0.02)
    for line in lines:
        line.reset()


def _drops_most(victim: Victim, begun: bytes) -> None:
    """Send these bytes on 400 connections, and require that the broker drops most of them."""
    lines: list[Line] = []
    for _ in range(400):
        line = victim.dial()
        line.send(begun)
        lines.append(line)
    deadline = time.monotonic() + 9  # requests that are not dropped are closed after ten seconds
    while (dropped := sum(line.is_closed for line in lines)) < 350 and time.monotonic() < deadline:
        for line in lines:
            line.wait(0.005)
    require(dropped >= 350, f"of 400 connections {dropped} were dropped")
    for line in lines:
        line.reset()


@attack(answer="finds messages that are not locked, and deletes those", log="connection closed")
def deleting_behind_locks(victim: Victim) -> None:
    """3,000 locked messages, and 50 requests that each delete one message."""
    victim.drain()
    _send(victim, 3050, message())
    holder = victim.receiving()
    require(len(_receive(holder, 3000)) == 3000, "the messages did not come")
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management", window=1000)
        for _ in range(50):
            requests.post(
                {"operation": "com.microsoft:batch-delete-messages"},
                {"message-count": Int(1), "enqueued-time-utc": Timestamp(253_370_764_800_000)},
            )
        for _ in range(50):
            status = status_of(requests.answer())
            require(status == 200, f"a message that is not locked was not deleted: {status}")
        line.send(CLOSE)
        line.answer()
    holder.reset()
    _all_of(victim, 3000)


@attack(
    answer="keeps 128 MiB of active messages in memory, in any order of arrival",
    log="link attached",
    max_peak=320 * MIB,
)
def dead_letters_in_reverse(victim: Victim) -> None:
    """900 messages of 250 KB, dead-lettered in reverse order by three receivers one after the other."""
    victim.drain()
    victim.drain(DEAD_LETTERS)
    _send(victim, 900, message(b"x" * LARGE))
    left = 900
    while left:
        with victim.receiving() as line:
            for number in reversed(taken := _receive(line, min(300, left))):
                line.send(frame(Disposition(role=True, first=number, settled=False, state=Rejected())))
            require(taken, "no message came")
            settled = 0
            while settled < len(taken):
                disposition = line.expect(Disposition)
                settled += (disposition.last or disposition.first) - disposition.first + 1
            left -= len(taken)
            line.send(CLOSE)
            line.answer()
    _all_of(victim, 900, DEAD_LETTERS)


@attack(answer="refuses properties that make a message larger than the limit", log="connection closed")
def properties_that_make_a_message_grow(victim: Victim) -> None:
    """A message of 100 KB that gets 100 KB of other properties each time that it is abandoned."""
    victim.drain()
    _send(victim, 1, message(b"x" * 100_000))
    with victim.receiving() as line:
        refused = 0
        line.send(credit(10, window=1000))
        for turn in range(3):
            number = line.expect(Transfer).delivery_id or 0
            grown = Modified(message_annotations={f"p{turn}": "x" * 100_000})
            line.send(frame(Disposition(role=True, first=number, settled=False, state=grown)))
            if isinstance(line.expect(Disposition).state, Rejected):
                refused += 1
                break
        require(refused, "a message grew to 400 KB")
        line.send(CLOSE)
        line.answer()
    _all_of(victim, 1)


@attack(
    answer="stores ids up to its limit, then refuses new ones and still detects the stored ones",
    log="connection closed",
)
def message_ids_without_end(victim: Victim) -> None:
    """More messages with different ids than a queue with duplicate detection stores."""
    victim.drain(IDS)

    def named(number: int) -> bytes:
        return Message(properties=Properties(message_id=f"id-{number}"), data=[b"x"]).encode()

    with victim.sending(IDS) as line:
        count = REMEMBERED_IDS + 500
        answers: dict[int, Any] = {}
        for first in range(0, count, 500):
            line.send(*[transfer(number, named(number)) for number in range(first, first + 500)])
            while len(answers) < first + 500:
                disposition = line.expect(Disposition)
                for number in range(disposition.first, (disposition.last or disposition.first) + 1):
                    answers[number] = disposition.state
        refused = sum(isinstance(state, Rejected) for state in answers.values())
        require(refused == 500, f"of {count} ids {refused} were refused")
        line.send(*[transfer(count + number, named(number)) for number in range(100)])
        known = 0
        while known < 100:
            disposition = line.expect(Disposition)
            require(isinstance(disposition.state, Accepted), "a repetition was refused")
            known += (disposition.last or disposition.first) - disposition.first + 1
        line.send(CLOSE)
        line.answer()
    require(victim.drain(IDS) == REMEMBERED_IDS, "a repetition was stored, or a message lost")

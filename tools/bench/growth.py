"""The broker's cost of a message as a quantity grows: the queue, the number of queues, connections or sessions.

The cost is the broker's CPU time per message, of all threads. This process is the load, with `peeklock.client` and
a constant number of messages in flight; its speed does not matter.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any, Final

from peeklock.client import Connection, Header, Message, Properties, Receiver, Sender, Sent, connect, parse_endpoint
from tools.bench.brokers import QUEUE, Peeklock
from tools.bench.interrupts import interrupts
from tools.bench.load import PREFETCH, SETTLE_AT_ONCE, LoadFailed, encoded_message
from tools.bench.processes import cpu_seconds, file_system, resident_bytes
from tools.bench.report import figure, machine, megabytes, print_table

CURVES: Final = ("messages", "entities", "connections", "sessions")
HEADS: Final = ("there are", "send µs", "send/s", "receive µs", "receive/s", "resident MB", "start, s")
_LINKS: Final = 1000
"""The most queues that are used: so many are chosen evenly from all."""
_IN_FLIGHT: Final = 1000
_OF_A_SESSION: Final = 10
"""Messages of each session, and received when it is accepted."""
_WAIT_SECONDS: Final = 60.0
_SPARE: Final = 4
"""Connections that the broker allows in addition to the measured ones."""
_MOST_CONNECTIONS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    messages: tuple[int, ...] = (1_000, 100_000, 1_000_000, 10_000_000)
    entities: tuple[int, ...] = (1, 100, 1_000, 10_000)
    connections: tuple[int, ...] = (1, 100, 1_000, 5_000)
    sessions: tuple[int, ...] = (1, 100, 10_000, 100_000)
    curves: tuple[str, ...] = CURVES
    size: int = 100
    sample: int = 40_000
    """Messages measured for one figure."""
    rounds: int = 3


@dataclass(slots=True)
class Point:
    """One point of a curve; medians of the rounds."""

    at: int
    send_us: float
    send_rate: float
    receive_us: float
    receive_rate: float
    resident_bytes: int | None
    ready_seconds: float | None = None
    """Seconds of a start, if the broker was started with this quantity."""


def run(options: Options, folder: Path, started: ExitStack, results_file: Path | None = None) -> dict[str, Any]:
    """Measure, print the tables, and return all figures. The file is written after each curve."""
    print(f"Growth: messages of {options.size:,} bytes, {options.sample:,} for each figure, {options.rounds} rounds.")
    print(f"{machine()}; data on {file_system(folder)}.", flush=True)
    results: dict[str, Any] = {
        "benchmark": "growth",
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "curves": {},
    }
    for name in options.curves:
        place = folder / name
        place.mkdir()
        points = []
        with ExitStack() as stack:
            started.callback(stack.close)
            for point in _MEASURES[name](options, place, stack):
                points.append(point)
                print(f"  {name}: {' '.join(row(point))}", flush=True)
        results["curves"][name] = [asdict(point) for point in points]
        print_table(f"Cost of a message as {name} grow", HEADS, [row(point) for point in points])
        if results_file is not None:
            results_file.parent.mkdir(parents=True, exist_ok=True)
            results_file.write_text(json.dumps(results, indent=1) + "\n")
    return results


def row(point: Point) -> list[str]:
    """Return the point as a row of the table."""
    return [
        f"{point.at:,}",
        figure(point.send_us, 1),
        figure(point.send_rate),
        figure(point.receive_us, 1),
        figure(point.receive_rate),
        megabytes(point.resident_bytes),
        figure(point.ready_seconds, 2),
    ]


# --- the curves ---


def _messages(options: Options, folder: Path, stack: ExitStack) -> Iterator[Point]:
    """Measure one queue with an increasing number of messages."""
    broker = _Broker(folder, stack, [QUEUE])
    connection = broker.connect(stack)
    sender = connection.sender(QUEUE)
    payload = encoded_message(options.size)
    held = 0
    for number in sorted(options.messages):
        # Filled in parts, so that signals are handled in between.
        while held < number:
            held += sender.send_all(repeat(payload, min(100_000, number - held)))
        receiver = connection.receiver(QUEUE, credit=PREFETCH)
        part = min(options.sample, max(5_000, number))

        def send(part: int = part) -> int:
            return sender.send_all(repeat(payload, part))

        def receive(part: int = part, receiver: Receiver = receiver) -> int:
            return _take(receiver, part)

        point = broker.point(number, options.rounds, send, receive)
        receiver.close()
        yield point


def _entities(options: Options, folder: Path, stack: ExitStack) -> Iterator[Point]:
    """Measure an increasing number of queues, which are used in turn, up to a number of links."""
    for number in sorted(options.entities):
        place = folder / str(number)
        place.mkdir()
        with ExitStack() as run_stack:
            broker = _Broker(place, run_stack, [f"queue-{index:05d}" for index in range(number)])
            links = min(number, _LINKS)
            used = [f"queue-{index * number // links:05d}" for index in range(links)]
            connection = broker.connect(run_stack)
            senders = [connection.sender(name) for name in used]
            receivers = [connection.receiver(name, credit=0) for name in used]
            count = max(links, options.sample // links * links)

            def send(senders: list[Sender] = senders, count: int = count) -> int:
                return _spread(senders, encoded_message(options.size), count)

            def receive(receivers: list[Receiver] = receivers, count: int = count) -> int:
                return _take_from_all(receivers, count // len(receivers))

            yield broker.point(number, options.rounds, send, receive, broker.ready_seconds)


def _connections(options: Options, folder: Path, stack: ExitStack) -> Iterator[Point]:
    """Measure an increasing number of connections that send to one queue; one of them receives, the others idle."""
    broker = _Broker(folder, stack, [QUEUE, "quiet"])
    most = _allowed_connections(max(options.connections))
    senders: list[Sender] = []
    for number in sorted(min(each, most) for each in options.connections):
        receiving = broker.connect(stack)
        receiver = receiving.receiver(QUEUE, credit=PREFETCH)
        while len(senders) < number - 1 or not senders:
            connection = broker.connect(stack)
            senders.append(connection.sender(QUEUE))
            connection.receiver("quiet", credit=10)

        def send() -> int:
            return _spread(senders, encoded_message(options.size), options.sample)

        def receive(receiver: Receiver = receiver) -> int:
            return _take(receiver, options.sample)

        yield broker.point(number, options.rounds, send, receive)
        receiving.close()


def _sessions(options: Options, folder: Path, stack: ExitStack) -> Iterator[Point]:
    """Measure an increasing number of sessions: accept the next one, receive ten of its messages, close it."""
    numbers = sorted(options.sessions)
    broker = _Broker(folder, stack, [f"sessions-{number}" for number in numbers], RequiresSession=True)
    connection = broker.connect(stack)
    accepts = max(1, options.sample // 4 // _OF_A_SESSION)
    for number in numbers:
        queue = f"sessions-{number}"
        payloads = [_in_session(options.size, index) for index in range(number)]
        sender = connection.sender(queue)
        sender.send_all(islice(cycle(payloads), number * _OF_A_SESSION))

        def send(sender: Sender = sender, payloads: list[bytes] = payloads) -> int:
            # As many as are received from each session, so that none has fewer.
            sessions = islice(cycle(payloads), accepts)
            return sender.send_all(chain.from_iterable(repeat(each, _OF_A_SESSION) for each in sessions))

        def receive(queue: str = queue) -> int:
            return sum(_take_session(connection, queue) for _ in range(accepts))

        yield broker.point(number, options.rounds, send, receive)
        sender.close()


_MEASURES: Final[dict[str, Callable[[Options, Path, ExitStack], Iterator[Point]]]] = {
    "messages": _messages,
    "entities": _entities,
    "connections": _connections,
    "sessions": _sessions,
}


# --- the load ---


class _Broker:
    """A running Peeklock with these queues, and its CPU time."""

    def __init__(self, folder: Path, stack: ExitStack, queues: Sequence[str], **properties: Any) -> None:
        self._broker = Peeklock(folder, stack, queues=dict.fromkeys(queues, properties))
        self.ready_seconds = self._broker.start()
        endpoint = parse_endpoint(self._broker.target(queues[0]).url)
        # With the key as the password; otherwise the client puts a token for each queue.
        self._url = f"amqp://{endpoint.key_name}:{endpoint.key}@{endpoint.host}:{endpoint.port}"

    def connect(self, stack: ExitStack) -> Connection:
        with interrupts.held():
            return stack.enter_context(connect(self._url, max_frame_size=65536, timeout=_WAIT_SECONDS))

    def point(
        self,
        number: int,
        rounds: int,
        send: Callable[[], int],
        receive: Callable[[], int],
        ready_seconds: float | None = None,
    ) -> Point:
        """Send and receive in turn, so that the number of messages stays the same; the first round is not counted."""
        send()
        receive()
        both = [(self._spent(send), self._spent(receive)) for _ in range(rounds)]
        sending, receiving = (sorted(each) for each in zip(*both, strict=True))
        (send_us, send_rate), (receive_us, receive_rate) = (each[len(each) // 2] for each in (sending, receiving))
        held = resident_bytes(self._broker.pid)
        return Point(number, send_us, send_rate, receive_us, receive_rate, held, ready_seconds)

    def _spent(self, work: Callable[[], int]) -> tuple[float, float]:
        before, began = self._cpu(), time.monotonic()
        count = work()
        seconds = time.monotonic() - began
        return (self._cpu() - before) / count * 1e6, count / seconds

    def _cpu(self) -> float:
        spent = cpu_seconds(self._broker.pid)
        if spent is None:
            raise LoadFailed("the CPU time of a process is unknown on this system; growth requires Linux")
        return spent


def _spread(senders: Sequence[Sender], payload: bytes, count: int) -> int:
    """Send through each sender in turn, with a constant number of messages in flight in total."""
    turns = cycle(senders)
    left = count
    while left:
        part = min(_IN_FLIGHT, left)
        sent = [(sender, sender.post(payload)) for sender in islice(turns, part)]
        for sender, one in sent:
            _wait_for(sender, one)
        left -= part
    return count


def _wait_for(sender: Sender, sent: Sent) -> None:
    if not sent.done:
        sender.connection.wait(lambda: sent.done, _WAIT_SECONDS, "an outcome")
    if sent.refused is not None:
        raise LoadFailed(f"a message was refused: {sent.refused}")


def _take(receiver: Receiver, count: int, *, confirm: bool = True) -> int:
    left = count
    while left:
        messages = receiver.receive(min(SETTLE_AT_ONCE, left), _WAIT_SECONDS)
        if not messages:
            raise LoadFailed(f"no message for {_WAIT_SECONDS:g} seconds, {left} are missing")
        receiver.accept(messages)
        left -= len(messages)
    if confirm:
        receiver.confirm()
    return count


def _take_from_all(receivers: Sequence[Receiver], each: int) -> int:
    """Grant credit to all receivers first, so that they do not wait for each other."""
    for receiver in receivers:
        receiver.credit = each
        receiver.receive(0, 0.0)
        receiver.credit = 0  # and no more after that
    count = sum(_take(receiver, each, confirm=False) for receiver in receivers)
    for receiver in receivers:
        receiver.confirm()
    return count


def _take_session(connection: Connection, queue: str) -> int:
    receiver = connection.session_receiver(queue, credit=_OF_A_SESSION, wait=_WAIT_SECONDS)
    count = _take(receiver, _OF_A_SESSION)
    receiver.close()
    return count


def _in_session(size: int, index: int) -> bytes:
    return Message(
        header=Header(durable=True),
        properties=Properties(message_id="x" * 16, group_id=f"session-{index}"),
        data=[b"x" * size],
    ).encode()


def _allowed_connections(wanted: int) -> int:
    """Limit the number of connections to what the broker and the file limit of this process allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 200
    if soft < needed:
        soft = min(needed, hard) if hard != resource.RLIM_INFINITY else needed
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = min(wanted, _MOST_CONNECTIONS - _SPARE, soft - 200)
    if allowed < wanted:
        print(f"  {allowed:,} connections instead of {wanted:,}: the limits allow no more.")
    return allowed

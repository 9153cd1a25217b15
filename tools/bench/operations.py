"""The `$management` operations on messages, in batches of 1, 100 and 1000, compared with a plain receive.

This process is the load. The figures count messages, not requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from peeklock.client import (
    Array,
    Connection,
    Header,
    Int,
    Message,
    Properties,
    ReceivedMessage,
    Requester,
    Symbol,
    Timestamp,
    UInt,
    connect,
)
from tools.bench.brokers import QUEUE, Peeklock
from tools.bench.load import encoded_message
from tools.bench.processes import file_system
from tools.bench.report import figure, machine, median, print_table

IN_FLIGHT: Final = 4
"""Requests in flight at once."""
SETTLE_AT_ONCE: Final = 250
TIME_OUT: Final = 120.0
FAR_AWAY_MS: Final = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 20_000
    """Messages; a twentieth of them for batches of one."""
    size: int = 1024
    rounds: int = 3
    batches: tuple[int, ...] = (1, 100, 1000)


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    print(f"Operations: {options.count:,} messages of {options.size:,} bytes, {IN_FLIGHT} requests in flight.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    connection = started.enter_context(connect(broker.target().url))
    load = _Load(connection, options.size)
    rates: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        rates.setdefault("receive and complete", {}).setdefault("", []).append(load.receive(options.count))
        for batch in options.batches:
            count = max(batch, options.count if batch > 1 else options.count // 20)
            for name, measure in load.operations.items():
                rates.setdefault(name, {}).setdefault(str(batch), []).append(measure(count, batch))
    _print(rates, options)
    return {
        "benchmark": "operations",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "rates": rates,
    }


class _Load:
    """The measurements. Each fills the queue, leaves it empty and returns messages per second."""

    def __init__(self, connection: Connection, size: int) -> None:
        self._connection = connection
        self._payload = encoded_message(size)
        self._size = size
        self._sender = connection.sender(QUEUE)
        self._requests = connection.requester(f"{QUEUE}/$management")
        self.operations: dict[str, Callable[[int, int], float]] = {
            "peek": self.peek,
            "schedule": self.schedule,
            "receive by sequence number": self.receive_by_number,
            "update disposition": self.update_disposition,
        }

    def receive(self, count: int) -> float:
        self._fill(count)
        receiver = self._connection.receiver(QUEUE, credit=1000)
        began = time.monotonic()
        left = count
        while left:
            messages = receiver.receive(min(SETTLE_AT_ONCE, left), timeout=TIME_OUT)
            receiver.accept(messages)
            left -= len(messages)
        receiver.confirm(timeout=TIME_OUT)
        rate = count / (time.monotonic() - began)
        receiver.close()
        return rate

    def peek(self, count: int, batch: int) -> float:
        self._fill(count)
        first = self._peek_first()
        bodies = [
            {"from-sequence-number": first + at, "message-count": Int(min(batch, count - at))}
            for at in range(0, count, batch)
        ]
        rate = self._timed("peek-message", bodies, count)
        self._take_all(count)
        return rate

    def schedule(self, count: int, batch: int) -> float:
        due = Timestamp(int(time.time() * 1000) + FAR_AWAY_MS)
        encoded = Message(
            header=Header(durable=True),
            message_annotations={Symbol("x-opt-scheduled-enqueue-time"): due},
            properties=Properties(message_id="x" * 16),
            data=[b"x" * self._size],
        ).encode()
        item = {"message-id": "x" * 16, "message": encoded}
        bodies = [{"messages": [item] * min(batch, count - at)} for at in range(0, count, batch)]
        numbers: list[int] = []
        began = time.monotonic()
        for reply in self._each("schedule-message", bodies):
            numbers += reply["sequence-numbers"]
        rate = count / (time.monotonic() - began)
        for part in _parts(numbers, 1000):
            self._one("cancel-scheduled-message", {"sequence-numbers": Array(part, int)})
        return rate

    def receive_by_number(self, count: int, batch: int) -> float:
        self._fill(count)
        receiver = self._connection.receiver(QUEUE, credit=1000)
        numbers = []
        for messages in _parts(self._taken(receiver, count), SETTLE_AT_ONCE):
            receiver.modify(messages, undeliverable_here=True)
            numbers += [_number(message) for message in messages]
        receiver.confirm(timeout=TIME_OUT)
        receiver.close()
        bodies = [
            {"sequence-numbers": Array(part, int), "receiver-settle-mode": UInt(1)} for part in _parts(numbers, batch)
        ]
        tokens: list[UUID] = []
        began = time.monotonic()
        for reply in self._each("receive-by-sequence-number", bodies):
            tokens += [item["lock-token"] for item in reply["messages"]]
        rate = count / (time.monotonic() - began)
        self._complete(tokens, 1000)
        return rate

    def update_disposition(self, count: int, batch: int) -> float:
        self._fill(count)
        receiver = self._connection.receiver(QUEUE, credit=1000)
        tokens = [message.lock_token for message in self._taken(receiver, count)]
        began = time.monotonic()
        self._complete([token for token in tokens if token is not None], batch)
        rate = count / (time.monotonic() - began)
        receiver.close()
        return rate

    # --- inside ---

    def _fill(self, count: int) -> None:
        self._sender.send_all((self._payload for _ in range(count)), timeout=TIME_OUT)

    def _taken(self, receiver: Any, count: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            messages += receiver.receive(min(1000, count - len(messages)), timeout=TIME_OUT)
        return messages

    def _take_all(self, count: int) -> None:
        receiver = self._connection.receiver(QUEUE, credit=1000)
        for messages in _parts(self._taken(receiver, count), SETTLE_AT_ONCE):
            receiver.accept(messages)
        receiver.confirm(timeout=TIME_OUT)
        receiver.close()

    def _peek_first(self) -> int:
        reply = self._one("peek-message", {"from-sequence-number": 1, "message-count": Int(1)})
        annotations = Message.decode(reply["messages"][0]["message"]).message_annotations
        assert annotations is not None
        return int(annotations["x-opt-sequence-number"])

    def _complete(self, tokens: list[UUID], batch: int) -> None:
        bodies = [
            {"disposition-status": "completed", "lock-tokens": Array(part, UUID)} for part in _parts(tokens, batch)
        ]
        for _ in self._each("update-disposition", bodies):
            pass

    def _timed(self, operation: str, bodies: list[dict[str, Any]], count: int) -> float:
        began = time.monotonic()
        for _ in self._each(operation, bodies):
            pass
        return count / (time.monotonic() - began)

    def _one(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        return next(self._each(operation, [body]))

    def _each(self, operation: str, bodies: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the replies in order, with some requests in flight."""
        waiting: list[Any] = []
        for body in bodies:
            waiting.append(self._requests.submit(_request(operation, body)))
            if len(waiting) == IN_FLIGHT:
                yield _reply(self._requests, waiting.pop(0))
        for request in waiting:
            yield _reply(self._requests, request)


def _request(operation: str, body: dict[str, Any]) -> Message:
    return Message(application_properties={"operation": f"com.microsoft:{operation}"}, value=body)


def _reply(requests: Requester, request: Any) -> dict[str, Any]:
    reply = requests.response(request, timeout=TIME_OUT)
    properties = reply.application_properties or {}
    if properties.get("statusCode") != 200:
        said = f"{properties.get('statusCode')}: {properties.get('statusDescription')}"
        raise ValueError(f"a request was answered with {said}")
    body: dict[str, Any] = reply.value
    return body


def _number(message: ReceivedMessage) -> int:
    annotations = message.message.message_annotations
    assert annotations is not None
    return int(annotations["x-opt-sequence-number"])


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _print(rates: dict[str, dict[str, list[float]]], options: Options) -> None:
    plain = median(rates["receive and complete"][""])
    heads = ["messages a second", *(f"by {batch}" for batch in options.batches), f"by {options.batches[-1]} / plain"]
    rows = []
    for name, by_batch in rates.items():
        if "" in by_batch:
            continue
        medians = [median(by_batch[str(batch)]) for batch in options.batches]
        last = medians[-1]
        ratio = last / plain if last is not None and plain else None
        rows.append([name, *(figure(value) for value in medians), figure(ratio, 2)])
    print_table(f"Plain receive and complete: {figure(plain)} messages a second", heads, rows)

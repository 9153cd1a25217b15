"""The load: processes with one connection each that send, receive and measure time, with `peeklock.client`.

A job connects, reports that it is ready and waits until all of its kind are; only then does the time start. All times
are of the system's monotonic clock, which processes share.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice, repeat
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Final

from peeklock.client import (
    Array,
    Connection,
    Header,
    Int,
    Message,
    Properties,
    ReceivedMessage,
    ReceiveMode,
    UInt,
    batch_limit,
    connect,
)
from peeklock.client.batches import ITEM_BYTES, envelope, pack

PREFETCH: Final = 1000
SETTLE_AT_ONCE: Final = 250
PEEK_AT_ONCE: Final = 1000
REMOVE_AT_ONCE: Final = 500
_BATCHES: Final = 32
"""Messages in flight at once."""
_QUIET_SECONDS: Final = 0.2
_READY_SECONDS: Final = 60.0


class LoadFailed(Exception):
    """A load process could not do its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of one load process, with its own connection."""

    url: str
    address: str
    count: int
    size: int = 0
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    seconds: float = 600.0
    """The most seconds that the job may take."""


class Send(Job):
    """Send `count` durable messages, unsettled, with many in flight, and wait for every outcome."""


class SendBatches(Job):
    """Like `Send`, in batches of the maximum size, which are encoded before the time starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNumbered(Job):
    """Like `Send`, with an application property `number` that cycles through these numbers."""

    numbers: range


class SendRows(Job):
    """Like `Send`; each message has its own id and three application properties, like the row of a table."""


class Receive(Job):
    """Receive and complete, in ranges, until all receivers together have `count`; or receive and delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Job):
    """Peek `count` messages from a sequence number on, page by page, and decode them."""

    first: int


class Defer(Job):
    """Receive `count` messages and defer them, marked as a claiming stream marks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove(Job):
    """Receive and delete `count` deferred messages with consecutive numbers, from a sequence number on."""

    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace(Job):
    """Send one message every `interval_seconds`, with one in flight, and record the time until each outcome."""

    interval_seconds: float


class Watch(Job):
    """Receive the messages of `Pace`, and record the latency of each."""


@dataclass(slots=True)
class Result:
    """The result of a job."""

    count: int
    began: float
    ended: float
    latencies: list[float] = field(default_factory=list)
    """Seconds."""
    cpu_seconds: float = 0.0
    """CPU seconds of the load process."""


def encoded_message(size: int, body_start: bytes = b"", **user: Any) -> bytes:
    """Return a durable message with a body of `size` bytes and these application properties."""
    return Message(
        header=Header(durable=True),
        properties=Properties(message_id="x" * 16),
        application_properties=user or None,
        data=[body_start + b"x" * (size - len(body_start))],
    ).encode()


class LoadProcesses:
    """A pool of processes that wait for jobs. They are ended with the context."""

    def __init__(self, number: int) -> None:
        # Spawned, not forked, so that the load shares no state with this process.
        context = multiprocessing.get_context("spawn")
        self._received = context.Value("q", 0)
        self._pipes: list[Pipe] = []
        self._processes = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._received), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, jobs: list[Job], before: Callable[[], None] = lambda: None) -> list[Result]:
        """Run all jobs at the same time, each in a process. `before` is called when all are ready to start."""
        pipes = self._pipes[: len(jobs)]
        assert len(pipes) == len(jobs)
        self._received.value = 0
        for pipe, job in zip(pipes, jobs, strict=True):
            pipe.send(job)
        for pipe in pipes:
            _answer(pipe, _READY_SECONDS)
        before()
        for pipe in pipes:
            pipe.send("go")
        return [_answer(pipe, job.seconds + _READY_SECONDS) for pipe, job in zip(pipes, jobs, strict=True)]


def _answer(pipe: Pipe, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise LoadFailed(f"a load process did not answer within {seconds:g} seconds")
    try:
        answer = pipe.recv()
    except EOFError:
        raise LoadFailed("a load process ended before its job was done") from None
    if isinstance(answer, LoadFailed):
        raise answer
    return answer


# --- in the load process ---


def _work(pipe: Pipe, received: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            with connect(job.url, max_frame_size=65536) as connection:
                if connection.endpoint.has_token:
                    connection.authenticate(job.address)
                pipe.send("ready")
                pipe.recv()
                spent = time.process_time()
                answer: Any = _DO[type(job)](connection, job, received)
                answer.cpu_seconds = time.process_time() - spent
        except Exception as failure:
            answer = LoadFailed(f"{type(job).__name__} at {job.address}: {failure}")
        pipe.send(answer)


def _send(connection: Connection, job: Send, received: Any) -> Result:
    payload = encoded_message(job.size)
    sender = connection.sender(job.address)
    began = time.monotonic()
    sender.send_all(repeat(payload, job.count))
    return Result(job.count, began, time.monotonic())


def _send_batches(connection: Connection, job: SendBatches, received: Any) -> Result:
    payload = encoded_message(job.size)
    sender = connection.sender(job.address)
    head = envelope("x" * 16, None, None)
    each = (batch_limit(sender) - len(head)) // (len(payload) + ITEM_BYTES)
    batches = [pack([payload] * number, head) for number in (each, job.count % each) if number]
    began = time.monotonic()
    for batch, number in zip(batches, (job.count // each, 1), strict=False):
        sender.send_all(repeat(batch.payload, number), in_flight=_BATCHES, message_format=batch.message_format)
    return Result(job.count, began, time.monotonic())


def _send_numbered(connection: Connection, job: SendNumbered, received: Any) -> Result:
    payloads = [encoded_message(job.size, number=Int(number)) for number in job.numbers]
    sender = connection.sender(job.address)
    began = time.monotonic()
    sender.send_all(islice(cycle(payloads), job.count))
    return Result(job.count, began, time.monotonic())


def _send_rows(connection: Connection, job: SendRows, received: Any) -> Result:
    before, after = encoded_message(job.size, p0="value", p1="value", p2="value").split(b"x" * 16, 1)
    sender = connection.sender(job.address)
    began = time.monotonic()
    sender.send_all(before + b"%016x" % number + after for number in range(job.count))
    return Result(job.count, began, time.monotonic())


def _receive(connection: Connection, job: Receive, received: Any) -> Result:
    began = ended = time.monotonic()
    receiver = connection.receiver(job.address, credit=PREFETCH, mode=job.mode)
    count = 0
    while (left := job.count - received.value) > 0:
        messages = receiver.receive(min(SETTLE_AT_ONCE, left), _QUIET_SECONDS)
        if messages:
            if job.mode is not ReceiveMode.RECEIVE_AND_DELETE:
                receiver.accept(messages)
            count += len(messages)
            with received.get_lock():
                received.value += len(messages)
            ended = time.monotonic()
        elif time.monotonic() - ended > job.seconds:
            raise LoadFailed(f"no message for {job.seconds:g} seconds, {left} are missing")
    if count:
        receiver.confirm()
        ended = time.monotonic()
    receiver.close()
    return Result(count, began, ended)


def _peek(connection: Connection, job: Peek, received: Any) -> Result:
    management = connection.management(job.address)
    number, end = job.first, job.first + job.count
    began = time.monotonic()
    count = 0
    while number < end:
        page = management.peek(number, min(PEEK_AT_ONCE, end - number))
        if not page:
            raise LoadFailed(f"{job.count - count} messages are missing")
        count += len(page)
        annotations = page[-1].message_annotations
        assert annotations is not None
        number = int(annotations["x-opt-sequence-number"]) + 1
    return Result(count, began, time.monotonic())


def _defer(connection: Connection, job: Defer, received: Any) -> Result:
    receiver = connection.receiver(job.address, credit=PREFETCH)
    mark = {"peeklock-claim": "bench"}
    began = time.monotonic()
    left = job.count
    while left:
        messages = receiver.receive(min(SETTLE_AT_ONCE, left), job.seconds)
        if not messages:
            raise LoadFailed(f"no message for {job.seconds:g} seconds, {left} are missing")
        receiver.modify(messages, delivery_failed=False, undeliverable_here=True, annotations=mark)
        left -= len(messages)
    receiver.confirm()
    ended = time.monotonic()
    receiver.close()
    return Result(job.count, began, ended)


def _remove(connection: Connection, job: Remove, received: Any) -> Result:
    management = connection.management(job.address)
    end = job.first + job.count
    began = time.monotonic()
    for first in range(job.first, end, REMOVE_AT_ONCE):
        numbers = Array(list(range(first, min(first + REMOVE_AT_ONCE, end))), int)
        body = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)}
        management.request("receive-by-sequence-number", body)
    return Result(job.count, began, time.monotonic())


def _pace(connection: Connection, job: Pace, received: Any) -> Result:
    sender = connection.sender(job.address)
    latencies = []
    due = began = time.monotonic()
    for _ in range(job.count):
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        handed_over = time.monotonic_ns()
        sender.send(encoded_message(job.size, handed_over.to_bytes(8, "big")))
        latencies.append((time.monotonic_ns() - handed_over) / 1e9)
        due = max(due + job.interval_seconds, time.monotonic())
    return Result(job.count, began, time.monotonic(), latencies)


def _watch(connection: Connection, job: Watch, received: Any) -> Result:
    receiver = connection.receiver(job.address, credit=PREFETCH, mode=job.mode)
    began = time.monotonic()
    latencies = []
    for message in _up_to(receiver.messages(job.seconds), job.count):
        latencies.append((time.monotonic_ns() - int.from_bytes(message.body[:8], "big")) / 1e9)
        receiver.accept(message)
    if len(latencies) < job.count:
        raise LoadFailed(f"{job.count - len(latencies)} messages were not received")
    receiver.confirm()
    return Result(job.count, began, time.monotonic(), latencies)


def _up_to(messages: Iterator[ReceivedMessage], count: int) -> Iterator[ReceivedMessage]:
    for _, message in zip(range(count), messages, strict=False):
        yield message


_DO: Final[dict[type, Callable[[Connection, Any, Any], Result]]] = {
    Send: _send,
    SendBatches: _send_batches,
    SendNumbered: _send_numbered,
    SendRows: _send_rows,
    Receive: _receive,
    Peek: _peek,
    Defer: _defer,
    Remove: _remove,
    Pace: _pace,
    Watch: _watch,
}

"""`peeklock send`: messages from arguments, files and standard input, in as few batches as they fit in."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from peeklock.amqp.message import Header, Message, Properties
from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, messaging
from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import AsJson, note, print_json, progress
from peeklock.cli.values import MESSAGE_TYPES, milliseconds, moment, typed_pairs
from peeklock.client import ClientError, Connection, SendRejected, Sent, batch_limit, fill_batches
from peeklock.client.management import PARTITION_KEY

app = typer.Typer()

_UNDER_WAY = 8
"""Batches without an outcome yet."""
_SCHEDULED_AT_ONCE = 100
_BURST_BYTES = 1024 * 1024
_PATIENCE = 1.0
"""Seconds between two looks at the connection while standard input is silent."""
_MAX_TTL_MS = 0xFFFFFFFF


Delivered = tuple[int, list[int]]
"""How many messages, and the sequence numbers of scheduled ones."""
Deliver = Callable[[Iterable[Message]], Iterator[Delivered]]


@dataclass
class Outcome:
    """How far it came."""

    sent: int = 0
    sequence_numbers: list[int] = field(default_factory=list)


@app.command()
def send(
    entity: Annotated[str, typer.Argument(help="The queue or the topic.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="A message each; - for a message a line of standard input.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="A message with the bytes of a file. Several times.")] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="A message for each line of standard input; the same as -.")
    ] = False,
    property: Annotated[
        list[str] | None,
        typer.Option(
            help=f"An application property, name=text or name:type=value ({', '.join(MESSAGE_TYPES)}). Several times."
        ),
    ] = None,
    subject: Annotated[str | None, typer.Option(help="What it is about; also called label.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Such as application/json.")] = None,
    message_id: Annotated[str | None, typer.Option(help="The same for all; without it each has its own.")] = None,
    correlation_id: Annotated[str | None, typer.Option()] = None,
    reply_to: Annotated[str | None, typer.Option()] = None,
    to: Annotated[str | None, typer.Option()] = None,
    session: Annotated[str | None, typer.Option(help="The session that they belong to.")] = None,
    partition_key: Annotated[str | None, typer.Option()] = None,
    time_to_live: Annotated[str | None, typer.Option(help="Such as 5m or PT5M.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="When they are enqueued: a moment (ISO 8601) or +5m. Prints sequence numbers.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Send everything that often.")] = 1,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Send messages to a queue or a topic."""
    texts = list(text or ())
    from_stdin = stdin or "-" in texts
    texts = [each for each in texts if each != "-"]
    if from_stdin and count > 1:
        fail("--count and standard input exclude each other")
    if not (texts or file or from_stdin):
        fail("there is nothing to send: give texts, --file, or - for the lines of standard input")
    at = None if schedule is None else moment(schedule, "--schedule", int(time.time() * 1000))
    properties = {
        "subject": subject,
        "content_type": content_type,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "to": to,
        "group_id": session,
    }
    make = _maker(
        ttl=None if time_to_live is None else milliseconds(time_to_live, "--time-to-live"),
        annotations=None if partition_key is None else {PARTITION_KEY: partition_key},
        applied=typed_pairs(property or (), "--property", MESSAGE_TYPES) or None,
        message_id=message_id,
        properties=properties,
    )
    bodies = [each.encode() for each in texts] + [_read(path) for path in file or ()]
    outcome = Outcome()
    with (
        messaging(connection_string, ca_file) as connection,
        progress("sending", None if from_stdin else len(bodies) * count) as advance,
    ):
        bursts = chain([(body for _ in range(count) for body in bodies)], _lines(connection) if from_stdin else ())
        deliver = _sender(connection, entity) if at is None else _scheduler(connection, entity, at)
        try:
            for burst in bursts:
                for number, sequence_numbers in deliver(make(body) for body in burst):
                    outcome.sent += number
                    outcome.sequence_numbers += sequence_numbers
                    advance(number)
        except (ClientError, KeyboardInterrupt):
            if outcome.sent:
                note(
                    f"peeklock: {outcome.sent} messages were {'sent' if at is None else 'scheduled'} before it stopped"
                )
            raise
    if json:
        numbers = {} if at is None else {"sequence_numbers": outcome.sequence_numbers}
        print_json({"sent": outcome.sent, **numbers})
    elif at is None:
        print(f"sent {outcome.sent} message{'' if outcome.sent == 1 else 's'} to {entity}")
    else:
        for number in outcome.sequence_numbers:
            print(number)


def _maker(
    *,
    ttl: int | None,
    annotations: dict[Any, Any] | None,
    applied: dict[str, Any] | None,
    message_id: str | None,
    properties: dict[str, str | None],
) -> Callable[[bytes], Message]:
    if ttl is not None and not 0 < ttl <= _MAX_TTL_MS:
        fail("--time-to-live must be more than nothing and less than 50 days; the entity's own has no such limit")

    def make(body: bytes) -> Message:
        return Message(
            header=None if ttl is None else Header(ttl=ttl),
            message_annotations=annotations,
            properties=Properties(message_id=message_id or uuid4().hex, **properties),  # type: ignore[arg-type]
            application_properties=applied,
            data=[body],
        )

    return make


def _lines(connection: Connection) -> Iterator[list[bytes]]:
    """The lines of standard input, as many at a time as are there; the connection is kept while none come."""
    stream, rest = sys.stdin.fileno(), b""
    while True:
        while not select.select([stream], [], [], _PATIENCE)[0]:
            connection.work()
        data = rest
        while len(data) < _BURST_BYTES and select.select([stream], [], [], 0)[0]:
            more = os.read(stream, _BURST_BYTES)
            if not more:
                if data:
                    yield [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")]
                return
            data += more
        *lines, rest = data.split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]


def _sender(connection: Connection, entity: str) -> Deliver:
    sender = connection.sender(entity)
    under_way: deque[tuple[Sent, int]] = deque()

    def settle(most: int) -> Iterator[Delivered]:
        while len(under_way) > most:
            sent, number = under_way[0]
            sender.wait_for(lambda: sent.done, None, "the outcome of the messages")  # noqa: B023
            if sent.refused is not None:
                raise sent.refused
            under_way.popleft()
            yield number, []

    def deliver(messages: Iterable[Message]) -> Iterator[Delivered]:
        for batch in fill_batches(messages, batch_limit(sender)):
            try:
                sent = sender.post(batch.payload, message_format=batch.message_format)
            except SendRejected:  # too large to be sent at all
                yield from settle(0)
                raise
            under_way.append((sent, batch.messages))
            yield from settle(_UNDER_WAY)
        yield from settle(0)

    return deliver


def _scheduler(connection: Connection, entity: str, at: int) -> Deliver:
    management = connection.management(entity)

    def deliver(messages: Iterable[Message]) -> Iterator[Delivered]:
        left = iter(messages)
        while some := list(islice(left, _SCHEDULED_AT_ONCE)):
            yield len(some), management.schedule(some, at)

    return deliver


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", Exit.USAGE)

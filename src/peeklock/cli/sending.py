"""`peeklock send`: send messages from arguments, files and standard input, in as few batches as possible."""

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

_IN_FLIGHT = 8
"""The most batches sent without an outcome."""
_SCHEDULED_BATCH = 100
"""The most messages scheduled in one request."""
_BURST_BYTES = 1024 * 1024
"""The most bytes read from standard input before they are sent."""
_POLL_SECONDS = 1.0
"""How often the connection is serviced while standard input has no data."""
_MAX_TTL_MS = 0xFFFFFFFF


Delivered = tuple[int, list[int]]
"""A number of sent messages, and their sequence numbers if they were scheduled."""
Deliver = Callable[[Iterable[Message]], Iterator[Delivered]]


@dataclass
class Outcome:
    """The messages sent so far."""

    sent: int = 0
    sequence_numbers: list[int] = field(default_factory=list)


@app.command()
def send(
    entity: Annotated[str, typer.Argument(help="The queue or topic.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="The body of a message; - for the lines of standard input.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Send the bytes of a file as a message. Repeatable.")] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Send each line of standard input as a message; the same as -.")
    ] = False,
    property: Annotated[
        list[str] | None,
        typer.Option(
            help=f"An application property: name=text or name:type=value ({', '.join(MESSAGE_TYPES)}). Repeatable."
        ),
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The subject, also called label.")] = None,
    content_type: Annotated[str | None, typer.Option(help="The content type, such as application/json.")] = None,
    message_id: Annotated[
        str | None, typer.Option(help="The message id of all messages.", show_default="a new id for each")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(help="The correlation id.")] = None,
    reply_to: Annotated[str | None, typer.Option(help="The address for replies.")] = None,
    to: Annotated[str | None, typer.Option(help="The `to` address in the message.")] = None,
    session: Annotated[str | None, typer.Option(help="The session id.")] = None,
    partition_key: Annotated[str | None, typer.Option(help="The partition key.")] = None,
    time_to_live: Annotated[str | None, typer.Option(help="The time to live, such as 5m or PT5M.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Schedule the messages for a time (ISO 8601) or +5m from now, and print their sequence numbers."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many times to send each message.")] = 1,
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
        fail("nothing to send: give texts, --file, or - for the lines of standard input")
    at = None if schedule is None else moment(schedule, "--schedule", int(time.time() * 1000))
    properties = {
        "subject": subject,
        "content_type": content_type,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "to": to,
        "group_id": session,
    }
    make = _message_factory(
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
                done = "sent" if at is None else "scheduled"
                note(f"peeklock: {outcome.sent} messages were {done} before the command stopped")
            raise
    if json:
        numbers = {} if at is None else {"sequence_numbers": outcome.sequence_numbers}
        print_json({"sent": outcome.sent, **numbers})
    elif at is None:
        print(f"sent {outcome.sent} message{'' if outcome.sent == 1 else 's'} to {entity}")
    else:
        for number in outcome.sequence_numbers:
            print(number)


def _message_factory(
    *,
    ttl: int | None,
    annotations: dict[Any, Any] | None,
    applied: dict[str, Any] | None,
    message_id: str | None,
    properties: dict[str, str | None],
) -> Callable[[bytes], Message]:
    if ttl is not None and not 0 < ttl <= _MAX_TTL_MS:
        fail("--time-to-live must be more than 0 and less than 50 days; an entity's default time to live can be longer")

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
    """Yield the lines of standard input that are available, and service the connection while there are none."""
    stream, rest = sys.stdin.fileno(), b""
    while True:
        while not select.select([stream], [], [], _POLL_SECONDS)[0]:
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
    in_flight: deque[tuple[Sent, int]] = deque()

    def settle(most: int) -> Iterator[Delivered]:
        while len(in_flight) > most:
            sent, number = in_flight[0]
            sender.wait_for(lambda: sent.done, None, "the outcome of the messages")  # noqa: B023
            if sent.refused is not None:
                raise sent.refused
            in_flight.popleft()
            yield number, []

    def deliver(messages: Iterable[Message]) -> Iterator[Delivered]:
        for batch in fill_batches(messages, batch_limit(sender)):
            try:
                sent = sender.post(batch.payload, message_format=batch.message_format)
            except SendRejected:  # larger than the sender may send
                yield from settle(0)
                raise
            in_flight.append((sent, batch.messages))
            yield from settle(_IN_FLIGHT)
        yield from settle(0)

    return deliver


def _scheduler(connection: Connection, entity: str, at: int) -> Deliver:
    management = connection.management(entity)

    def deliver(messages: Iterable[Message]) -> Iterator[Delivered]:
        left = iter(messages)
        while some := list(islice(left, _SCHEDULED_BATCH)):
            yield len(some), management.schedule(some, at)

    return deliver


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", Exit.USAGE)

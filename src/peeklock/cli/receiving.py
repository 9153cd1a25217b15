"""`peeklock receive` and `peeklock peek`: receive or browse the messages of an entity, and print them.

A message is settled only after it was printed: if the reader of the output closes the pipe, the message stays in the
entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated

import typer

from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.cli.connecting import (
    LOCAL,
    CaFile,
    ConnectionString,
    Entity,
    FromDeadLetters,
    Subscription,
    address_of,
    messaging,
)
from peeklock.cli.failing import fail
from peeklock.cli.messages import describe, print_overview, print_whole, sequence_number, write_body
from peeklock.cli.output import AsJson, note, print_json
from peeklock.client import ClientError, Connection, LinkClosed, Management, ReceivedMessage, ReceiveMode, Receiver
from peeklock.entities.names import DEAD_LETTER_SUFFIX

app = typer.Typer()

NEXT_SESSION = "next"
_BATCH = 100
"""The most messages that are locked and not yet printed, and the most in one peek request."""


class Settlement(StrEnum):
    """The choices of --settle."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"


@app.command()
def receive(
    entity: Entity,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    max: Annotated[int, typer.Option(min=0, help="Receive at most this many messages; 0 for no limit.")] = 1,
    wait: Annotated[float, typer.Option(min=0, help="Stop after this many seconds without a message.")] = 5,
    settle: Annotated[Settlement, typer.Option(help="How to settle the messages.")] = Settlement.COMPLETE,
    reason: Annotated[str | None, typer.Option(help="The dead-letter reason, with --settle dead-letter.")] = None,
    description: Annotated[
        str | None, typer.Option(help="The dead-letter description, with --settle dead-letter.")
    ] = None,
    delete_mode: Annotated[
        bool,
        typer.Option("--delete-mode", help="Receive and delete: a message is removed when it is sent to the command."),
    ] = False,
    session: Annotated[
        str | None, typer.Option(help=f"A session id, or '{NEXT_SESSION}' for the next session with messages.")
    ] = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
    body_only: Annotated[
        bool, typer.Option("--body-only", help="Print only the body of each message, unchanged, and a line end.")
    ] = False,
) -> None:
    """Receive messages, print all their fields, and complete them. With --json: an object a line."""
    if json and body_only:
        fail("--json and --body-only exclude each other")
    if delete_mode and settle is not Settlement.COMPLETE:
        fail("--delete-mode and --settle exclude each other: receive-and-delete leaves nothing to settle")
    if (reason is not None or description is not None) and settle is not Settlement.DEAD_LETTER:
        fail("--reason and --description require --settle dead-letter")
    show = _json_line if json else write_body if body_only else print_whole
    address = address_of(entity, subscription, DEAD_LETTER_SUFFIX if dead_letter else None)
    mode = ReceiveMode.RECEIVE_AND_DELETE if delete_mode else ReceiveMode.PEEK_LOCK
    with messaging(connection_string, ca_file) as connection:
        receiver = _receiver(connection, address, session, mode, wait)
        if receiver is None:
            note("no session has messages")
            return
        with receiver:
            received = _print_and_settle(receiver, max, wait, _Settler(receiver, settle, reason, description), show)
    if not received:
        note("no messages")


class _Settler:
    """Settles printed messages."""

    def __init__(self, receiver: Receiver, how: Settlement, reason: str | None, description: str | None) -> None:
        self._receiver = receiver
        self._how = how
        self._info = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
        self.is_last_step = how is Settlement.ABANDON
        """Whether to settle after the last message was received.

        An abandoned message is redelivered at once; the command would receive it until it is dead-lettered.
        """

    def __call__(self, messages: list[ReceivedMessage]) -> None:
        receiver = self._receiver
        match self._how:
            case Settlement.COMPLETE:
                receiver.accept(messages, wait=True)
            case Settlement.ABANDON:
                receiver.modify(messages, wait=True)
            case Settlement.DEFER:
                receiver.modify(messages, delivery_failed=False, undeliverable_here=True, wait=True)
            case Settlement.DEAD_LETTER:
                info = {key: value for key, value in self._info.items() if value is not None}
                receiver.reject(messages, Condition.DEAD_LETTER, info=info, wait=True)


def _receiver(
    connection: Connection, address: str, session: str | None, mode: ReceiveMode, wait: float
) -> Receiver | None:
    """Attach a receiver to the entity or session. None if the next session was given and no session has messages."""
    if session is None:
        return connection.receiver(address, credit=0, mode=mode)
    try:
        name = None if session == NEXT_SESSION else session
        return connection.session_receiver(address, name, credit=0, mode=mode, wait=wait)
    except LinkClosed as closed:
        if session == NEXT_SESSION and closed.condition == Condition.TIMEOUT:
            return None
        raise


def _print_and_settle(
    receiver: Receiver, most: int, wait: float, settle: _Settler, show: Callable[[Message], None]
) -> int:
    """Print messages and settle them. Releases the messages that were not settled if an exception ends it."""
    count = 0
    held: list[ReceivedMessage] = []
    try:
        while not most or count < most:
            messages = receiver.receive(min(_BATCH, most - count) if most else _BATCH, timeout=wait)
            if not messages:
                break
            held += [message for message in messages if not message.settled]
            for message in messages:
                show(message.message)
                count += 1
            if held and not settle.is_last_step:
                printed, held = held, []
                settle(printed)
        if held:
            printed, held = held, []
            settle(printed)
    finally:
        if held:
            with suppress(ClientError):  # if this fails, the locks expire
                receiver.release(held, wait=True)
    return count


def _json_line(message: Message) -> None:
    print_json(describe(message))


@app.command()
def peek(
    entity: Entity,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    from_: Annotated[int, typer.Option("--from", min=0, help="The sequence number to start at.")] = 1,
    max: Annotated[int, typer.Option(min=0, help="Print at most this many messages; 0 for all.")] = 20,
    session: Annotated[str | None, typer.Option(help="Only messages of this session.")] = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Print messages without locking them, including deferred and scheduled ones. With --json: an object a line."""
    address = address_of(entity, subscription, DEAD_LETTER_SUFFIX if dead_letter else None)
    with messaging(connection_string, ca_file) as connection, connection.management(address) as management:
        found = peek_all(management, from_, max, session)
        if json:
            for message in found:
                _json_line(message)
        else:
            messages = list(found)
            if messages:
                print_overview(messages)
            else:
                note("no messages")


def peek_all(management: Management, first: int = 1, most: int = 0, session: str | None = None) -> Iterator[Message]:
    """Browse messages from a sequence number on; at most `most`, or all with 0."""
    count = 0
    while not most or count < most:
        messages = management.peek(first, min(_BATCH, most - count) if most else _BATCH, session)
        if not messages:
            return
        yield from messages
        count += len(messages)
        first = sequence_number(messages[-1]) + 1

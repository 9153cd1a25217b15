"""`peeklock receive` and `peeklock peek`: messages out of an entity, or just looked at.

A message is settled after it was printed, never before: a reader that goes away leaves it where it was.
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
    DEAD_LETTERS,
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

app = typer.Typer()

NEXT_SESSION = "next"
_AT_ONCE = 100
"""Messages that are locked and not printed yet, at most."""


class Settlement(StrEnum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"


@app.command()
def receive(
    entity: Entity,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    max: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all that come.")] = 1,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a message when there is none.")] = 5,
    settle: Annotated[Settlement, typer.Option(help="What becomes of them.")] = Settlement.COMPLETE,
    reason: Annotated[str | None, typer.Option(help="Why they are dead-lettered.")] = None,
    description: Annotated[str | None, typer.Option(help="More on why they are dead-lettered.")] = None,
    delete_mode: Annotated[
        bool,
        typer.Option("--delete-mode", help="Receive and delete: gone once they leave the service, printed or not."),
    ] = False,
    session: Annotated[
        str | None, typer.Option(help=f"A session, or '{NEXT_SESSION}' for the next one that has messages.")
    ] = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
    body_only: Annotated[
        bool, typer.Option("--body-only", help="Print the bodies as they are, a line end after each.")
    ] = False,
) -> None:
    """Receive messages, print them whole, and complete them. With --json: an object a line."""
    if json and body_only:
        fail("--json and --body-only exclude each other")
    if delete_mode and settle is not Settlement.COMPLETE:
        fail("--delete-mode and --settle exclude each other: there is nothing left to settle")
    if (reason is not None or description is not None) and settle is not Settlement.DEAD_LETTER:
        fail("--reason and --description need --settle dead-letter")
    show = _json_line if json else write_body if body_only else print_whole
    address = address_of(entity, subscription, DEAD_LETTERS if dead_letter else None)
    mode = ReceiveMode.RECEIVE_AND_DELETE if delete_mode else ReceiveMode.PEEK_LOCK
    with messaging(connection_string, ca_file) as connection:
        receiver = _receiver(connection, address, session, mode, wait)
        if receiver is None:
            note("no session has messages")
            return
        with receiver:
            handed_out = _hand_out(receiver, max, wait, _Settling(receiver, settle, reason, description), show)
    if not handed_out:
        note("no messages")


class _Settling:
    """What becomes of messages that were printed."""

    def __init__(self, receiver: Receiver, how: Settlement, reason: str | None, description: str | None) -> None:
        self._receiver = receiver
        self._how = how
        self._info = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
        self.at_the_end = how is Settlement.ABANDON
        """An abandoned message comes again at once, and would be received until it is dead-lettered."""

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
    """None when no session has messages."""
    if session is None:
        return connection.receiver(address, credit=0, mode=mode)
    try:
        name = None if session == NEXT_SESSION else session
        return connection.session_receiver(address, name, credit=0, mode=mode, wait=wait)
    except LinkClosed as closed:
        if session == NEXT_SESSION and closed.condition == Condition.TIMEOUT:
            return None
        raise


def _hand_out(receiver: Receiver, most: int, wait: float, settle: _Settling, show: Callable[[Message], None]) -> int:
    """Print and settle; what could not be printed is given back."""
    count = 0
    held: list[ReceivedMessage] = []
    try:
        while not most or count < most:
            messages = receiver.receive(min(_AT_ONCE, most - count) if most else _AT_ONCE, timeout=wait)
            if not messages:
                break
            held += [message for message in messages if not message.settled]
            for message in messages:
                show(message.message)
                count += 1
            if held and not settle.at_the_end:
                printed, held = held, []
                settle(printed)
        if held:
            printed, held = held, []
            settle(printed)
    finally:
        if held:
            with suppress(ClientError):  # their locks run out
                receiver.release(held, wait=True)
    return count


def _json_line(message: Message) -> None:
    print_json(describe(message))


@app.command()
def peek(
    entity: Entity,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    from_: Annotated[int, typer.Option("--from", min=0, help="The sequence number to begin with.")] = 1,
    max: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = 20,
    session: Annotated[str | None, typer.Option(help="Only messages of this session.")] = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Look at messages without locking them, also deferred and scheduled ones. With --json: whole, an object a line."""
    address = address_of(entity, subscription, DEAD_LETTERS if dead_letter else None)
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
    """Messages from a number on, in as many requests as it takes."""
    count = 0
    while not most or count < most:
        messages = management.peek(first, min(_AT_ONCE, most - count) if most else _AT_ONCE, session)
        if not messages:
            return
        yield from messages
        count += len(messages)
        first = sequence_number(messages[-1]) + 1

"""`peeklock purge`: delete the active messages of an entity."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import typer

from peeklock.amqp.errors import Condition
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
from peeklock.cli.output import AsJson, Yes, confirm, print_json, progress
from peeklock.client import Connection, LinkClosed, ReceiveMode, Receiver, RequestRefused
from peeklock.entities.names import DEAD_LETTER_SUFFIX

app = typer.Typer()

_BATCH = 500
"""The most messages that the hosted service deletes in one request."""
_WAIT = 1.0
"""Seconds to wait for a message or a session before the entity counts as empty."""


@app.command()
def purge(
    entity: Entity,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    yes: Yes = False,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Delete all active messages of an entity. Deferred, scheduled and locked messages stay."""
    address = address_of(entity, subscription, DEAD_LETTER_SUFFIX if dead_letter else None)
    confirm(f"Delete all active messages in {address}?", yes)
    with messaging(connection_string, ca_file) as connection:
        report(address, delete_all(connection, address), json)


def report(address: str, steps: Iterable[int], json: bool) -> None:
    """Run the deleting steps, each of which yields a number of messages, and print how many were deleted."""
    deleted = 0
    with progress("deleting") as advance:
        for count in steps:
            deleted += count
            advance(count)
    if json:
        print_json({"deleted": deleted})
    else:
        print(f"deleted {deleted} message{'' if deleted == 1 else 's'} from {address}")


def delete_all(connection: Connection, address: str) -> Iterator[int]:
    """Delete the messages enqueued until now, and yield the number of messages of each step.

    Later messages stay; otherwise an active sender could keep the command running.
    """
    now = int(time.time() * 1000) + 1
    try:
        with connection.management(address) as management:
            while count := management.delete_messages(now, _BATCH):
                yield count
    except RequestRefused as refused:
        # The service does not support the operation, or not for an entity with sessions: receive and delete instead.
        if refused.status not in (400, 501):
            raise
        yield from _receive_all(connection, address)


def _receive_all(connection: Connection, address: str) -> Iterator[int]:
    try:
        with connection.receiver(address, credit=0, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            yield from _receive_until_empty(receiver)
    except LinkClosed as closed:
        if closed.condition != Condition.NOT_ALLOWED:
            raise
        yield from _receive_sessions(connection, address)


def _receive_sessions(connection: Connection, address: str) -> Iterator[int]:
    while True:
        try:
            receiver = connection.session_receiver(address, credit=0, mode=ReceiveMode.RECEIVE_AND_DELETE, wait=_WAIT)
        except LinkClosed as closed:
            if closed.condition == Condition.TIMEOUT:
                return
            raise
        with receiver:
            yield from _receive_until_empty(receiver)


def _receive_until_empty(receiver: Receiver) -> Iterator[int]:
    while messages := receiver.receive(_BATCH, timeout=_WAIT):
        yield len(messages)

"""`peeklock purge`: delete the messages of an entity."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import typer

from peeklock.amqp.errors import Condition
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
from peeklock.cli.output import AsJson, Yes, confirm, print_json, progress
from peeklock.client import Connection, LinkClosed, ReceiveMode, Receiver, RequestRefused

app = typer.Typer()

_AT_ONCE = 500
"""What the hosted service deletes by one request, at most."""
_PATIENCE = 1.0
"""Seconds without a message, or a session, after which there are no more."""


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
    """Delete all active messages. Deferred, scheduled and locked ones stay."""
    address = address_of(entity, subscription, DEAD_LETTERS if dead_letter else None)
    confirm(f"Delete all messages in {address}?", yes)
    with messaging(connection_string, ca_file) as connection:
        report(address, delete_all(connection, address), json)


def report(address: str, steps: Iterable[int], json: bool) -> None:
    """Have messages deleted, some at each step, and say how many those were."""
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
    """What came until now, so that a sender who goes on does not keep this going; how many at each step."""
    now = int(time.time() * 1000) + 1
    try:
        with connection.management(address) as management:
            while count := management.delete_messages(now, _AT_ONCE):
                yield count
    except RequestRefused as refused:
        # Not known there, or not for an entity with sessions: then one after the other.
        if refused.status not in (400, 501):
            raise
        yield from _receive_all(connection, address)


def _receive_all(connection: Connection, address: str) -> Iterator[int]:
    try:
        with connection.receiver(address, credit=0, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            yield from _empty(receiver)
    except LinkClosed as closed:
        if closed.condition != Condition.NOT_ALLOWED:
            raise
        yield from _receive_sessions(connection, address)


def _receive_sessions(connection: Connection, address: str) -> Iterator[int]:
    while True:
        try:
            receiver = connection.session_receiver(
                address, credit=0, mode=ReceiveMode.RECEIVE_AND_DELETE, wait=_PATIENCE
            )
        except LinkClosed as closed:
            if closed.condition == Condition.TIMEOUT:
                return
            raise
        with receiver:
            yield from _empty(receiver)


def _empty(receiver: Receiver) -> Iterator[int]:
    while messages := receiver.receive(_AT_ONCE, timeout=_PATIENCE):
        yield len(messages)
